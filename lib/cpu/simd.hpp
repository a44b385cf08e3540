/// \file
/// What lets plain loops run at the width of the machine: one clone of a function for each
/// instruction set, and the vector forms of exp and tanh in glibc's libmvec. Elsewhere the same
/// loops run as the compiler makes them. Include before <cmath> is used.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define SHARDLOSS_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
extern "C" {
__attribute__((simd("notinbranch"))) float expf(float) noexcept;
__attribute__((simd("notinbranch"))) double exp(double) noexcept;
#if __GLIBC_PREREQ(2, 35)
__attribute__((simd("notinbranch"))) float tanhf(float) noexcept;
__attribute__((simd("notinbranch"))) double tanh(double) noexcept;
#endif
}
#else
#define SHARDLOSS_CLONES
#endif

/// A loop body shared by the clones of several types: it must end up inside each clone, or it would
/// be compiled for the oldest instruction set.
#define SHARDLOSS_INLINE [[gnu::always_inline]] inline
