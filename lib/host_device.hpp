/// \file
/// How a function of this library says that kernels call it too.
#pragma once

#ifdef __CUDACC__
#define SHARDLOSS_HOST_DEVICE __host__ __device__
#else
#define SHARDLOSS_HOST_DEVICE
#endif
