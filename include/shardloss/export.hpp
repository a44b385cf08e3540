/// \file
/// What a shared library shows of itself.
#pragma once

/// Marks the symbols that consumers link against; everything else is compiled with hidden
/// visibility. Means nothing for the static libraries, which are the default.
#define SHARDLOSS_API __attribute__((visibility("default")))
