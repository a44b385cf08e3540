/// \file
/// What options there are, and their help texts.
#pragma once

#include <boost/program_options.hpp>

#include "options.hpp"

namespace shardloss::launch {

namespace po = boost::program_options;

/// The options of a command, in groups.
po::options_description all_options(Command command);

/// Those of a bench that say what one pass computes, and how.
po::options_description pass_options();

}  // namespace shardloss::launch
