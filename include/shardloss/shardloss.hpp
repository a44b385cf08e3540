/// \file
/// Everything of the core library. mpi.hpp and nccl.hpp, which need those packages, are apart.
#pragma once

#include "shardloss/communicator.hpp"
#include "shardloss/embedding.hpp"
#include "shardloss/error.hpp"
#include "shardloss/loss.hpp"
#include "shardloss/plan.hpp"
#include "shardloss/problem.hpp"
#include "shardloss/tensor.hpp"
