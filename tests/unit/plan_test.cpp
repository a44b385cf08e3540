#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "expect_error.hpp"
#include "sample.hpp"
#include "shardloss/plan.hpp"

namespace shardloss::test {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

Problem llama(DType dtype = DType::bfloat16) {
  Problem problem = plain_problem(8192, 4096, 128256, dtype);
  problem.grad_weight = GradDType::float32;
  return problem;
}

Plan plan_of(const Problem& problem, int ranks = 1, int rank = 0,
             DeviceKind device = DeviceKind::cpu) {
  return make_plan(problem, ranks, rank, device);
}

std::size_t bytes_named(const Plan& plan, const std::string& part) {
  std::size_t sum = 0;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.name.find(part) != std::string::npos) sum += buffer.bytes;
  return sum;
}

TEST(Plan, BuffersAreAlignedDoNotMeetAndFillTheWorkspace) {
  for (int ranks : {1, 3}) {
    Problem problem = llama();
    problem.layout = Layout::row_sharded;
    problem.bias = true;
    problem.grad_weight = GradDType::same;
    const Plan plan = plan_of(problem, ranks);
    std::size_t most = 0;
    for (const PlannedBuffer& a : plan.buffers) {
      EXPECT_EQ(a.offset % 256, 0u) << a.name;
      EXPECT_LE(a.offset + a.bytes, plan.workspace_bytes) << a.name;
      most = std::max(most, a.offset + a.bytes);
      for (const PlannedBuffer& b : plan.buffers) {
        if (&a == &b) continue;
        EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset)
            << a.name << " meets " << b.name;
      }
    }
    EXPECT_LT(plan.workspace_bytes - most, 256u);
  }
}

// The floor: L C V_r logits (L = 1 at P = 1, else 2) + k C D fp32 (k = 0 at P = 1, else 2;
// row_sharded: + 2 C D of X) + GEMM workspace <= 64 MiB + O(N).
TEST(Plan, WorkspaceKeepsToTheFormula) {
  for (DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (int ranks : {1, 2, 8}) {
      for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
        Problem problem = llama();
        problem.layout = layout;
        problem.chunking = {Chunking::Rule::rows, 1024};
        const Plan plan = plan_of(problem, ranks, 0, device);
        const double c = 1024, d = 4096, n = 8192;
        const double logits = (ranks == 1 ? 1 : 2) * c * static_cast<double>(plan.widest) * 2;
        const double partials = ranks == 1 ? 0 : 2 * c * d * 4;
        const double gathered = layout == Layout::row_sharded && ranks > 1 ? 2 * c * d * 2 : 0;
        // 16-bit CPU problems convert tile by tile: X and dX chunks in fp32, a tile of W.
        const double tiles = device == DeviceKind::cpu ? 2 * c * d * 4 + 1024 * (c + d) * 4 : 0;
        const double rows = 512 * n + 2 * 96.0 * ranks * c;
        const double most = 1.02 * (logits + partials + gathered) + tiles + 64.0 * (1 << 20) + rows;
        EXPECT_LE(static_cast<double>(plan.workspace_bytes), most)
            << name(device) << " P " << ranks << " " << name(layout);
        EXPECT_GE(static_cast<double>(plan.workspace_bytes), logits + partials + gathered);
      }
    }
  }
}

TEST(Plan, TakesTheChunkRowsThatAreAskedFor) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::rows, 1000};
  EXPECT_EQ(plan_of(problem).chunk_rows, 1000);
  EXPECT_EQ(plan_of(problem).chunks, 9);
  problem.chunking = {Chunking::Rule::rows, 100000};
  EXPECT_EQ(plan_of(problem).chunk_rows, 8192);
  EXPECT_EQ(plan_of(problem).chunks, 1);
}

// next_power_of_two(ceil(N / ceil(V / D))) / k: 8192 / ceil(128256 / 4096) = 8192 / 32 = 256.
TEST(Plan, AspectRatioIsPyTorchsRule) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::aspect_ratio, 1};
  EXPECT_EQ(plan_of(problem).chunk_rows, 256);
  problem.chunking.value = 4;
  EXPECT_EQ(plan_of(problem).chunk_rows, 64);
  problem.max_rows = 8193;  // ceil(8193 / 32) = 257, next power of two 512
  problem.chunking.value = 1;
  EXPECT_EQ(plan_of(problem).chunk_rows, 512);
  // From the largest shard: ceil(64128 / 4096) = 16.
  problem.max_rows = 8192;
  EXPECT_EQ(plan_of(problem, 2).chunk_rows, 512);
}

TEST(Plan, WorkspaceLimitHoldsAndIsUsedUp) {
  for (int ranks : {1, 2}) {
    Problem problem = llama(DType::float32);
    problem.chunking = {Chunking::Rule::workspace_limit, std::int64_t{512} << 20};
    const Plan plan = plan_of(problem, ranks);
    EXPECT_LE(plan.workspace_bytes, std::size_t{512} << 20);
    Problem more = problem;
    more.chunking = {Chunking::Rule::rows, plan.chunk_rows + 1};
    EXPECT_GT(plan_of(more, ranks).workspace_bytes, std::size_t{512} << 20);
  }
}

TEST(Plan, WorkspaceLimitThatHoldsNoRowIsRefusedWithBothNumbers) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::workspace_limit, 1000};
  expect_error(ErrorCode::invalid_argument, {"workspace_limit", "1000"}, [&] { plan_of(problem); });
}

TEST(Plan, ChunkRowsComeFromTheLargestShardAndAreTheSameOnAllRanks) {
  Problem problem = llama(DType::float32);
  problem.shard_widths = {100000, 28256, 0};
  for (Chunking chunking : {Chunking{}, Chunking{Chunking::Rule::aspect_ratio, 2},
                            Chunking{Chunking::Rule::workspace_limit, 600 << 20}}) {
    problem.chunking = chunking;
    const Plan first = plan_of(problem, 3, 0);
    for (int rank : {1, 2}) {
      const Plan plan = plan_of(problem, 3, rank);
      EXPECT_EQ(plan.chunk_rows, first.chunk_rows);
      EXPECT_EQ(plan.slots, first.slots);
      EXPECT_EQ(plan.widest, 100000);
    }
  }
}

TEST(Plan, KeepsTwoLogitsBuffersOnlyWhereThereIsSomethingToHide) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::rows, 1024};
  EXPECT_EQ(plan_of(problem, 1).slots, 1);
  EXPECT_EQ(plan_of(problem, 2).slots, 2);
}

TEST(Plan, AccumulationDecidesTheDTypes) {
  Problem problem = llama(DType::bfloat16);
  problem.accumulation = Accumulation::accurate;
  EXPECT_EQ(plan_of(problem).logits_dtype, DType::float32);
  EXPECT_EQ(plan_of(problem).grad_hidden_partial_dtype, DType::float32);
  for (Accumulation balanced : {Accumulation::balanced, Accumulation::automatic}) {
    problem.accumulation = balanced;
    EXPECT_EQ(plan_of(problem).logits_dtype, DType::bfloat16);
    EXPECT_EQ(plan_of(problem).grad_hidden_partial_dtype, DType::float32);
  }
  problem.accumulation = Accumulation::compact;
  EXPECT_EQ(plan_of(problem).logits_dtype, DType::bfloat16);
  EXPECT_EQ(plan_of(problem).grad_hidden_partial_dtype, DType::bfloat16);
  problem.dtype = DType::float64;
  EXPECT_EQ(plan_of(problem).logits_dtype, DType::float64);
}

TEST(Plan, ShowsTheWeightGradientsAccumulatorByItself) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::rows, 1024};
  EXPECT_EQ(bytes_named(plan_of(problem), "weight gradient"), 0u);  // fp32 main_grad
  problem.grad_weight = GradDType::same;
  EXPECT_EQ(bytes_named(plan_of(problem), "weight gradient"), std::size_t{128256} * 4096 * 4);
  problem.accumulation = Accumulation::compact;
  EXPECT_EQ(bytes_named(plan_of(problem), "weight gradient"), 0u);
}

// CUDA: shares of blocks, then the bias once, in the dtype of the logits. CPU: two numbers a row.
TEST(Plan, RowScratchHoldsTheBiasOnceAndOnGpusAlone) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::rows, 1024};
  const auto scratch = [&](DeviceKind device) {
    return bytes_named(plan_of(problem, 1, 0, device), "row scratch");
  };
  EXPECT_EQ(scratch(DeviceKind::cuda), 65536u);
  EXPECT_EQ(scratch(DeviceKind::cpu), 1024u * 2 * 8);
  problem.bias = true;
  EXPECT_EQ(scratch(DeviceKind::cuda), 65536u + 128256 * 2);
  EXPECT_EQ(scratch(DeviceKind::cpu), 1024u * 2 * 8);
  problem.accumulation = Accumulation::accurate;
  EXPECT_EQ(scratch(DeviceKind::cuda), 65536u + 128256 * 4);
}

TEST(Plan, FrozenHeadHasNoBufferOfTheWeightsSize) {
  Problem problem = llama();
  problem.grad_weight = GradDType::none;
  problem.chunking = {Chunking::Rule::rows, 64};
  for (const PlannedBuffer& buffer : plan_of(problem).buffers)
    EXPECT_LT(buffer.bytes, std::size_t{128256} * 4096) << buffer.name;
  for (const PlannedGemm& gemm : plan_of(problem).gemms) EXPECT_NE(gemm.name, "grad_weight");
}

TEST(Plan, CountsOperationsOfEachWay) {
  Problem problem = llama();
  const double product = 2.0 * 8192 * 4096 * 128256;
  const Plan whole = plan_of(problem);
  EXPECT_DOUBLE_EQ(whole.forward_backward_flops, 3 * product);
  EXPECT_DOUBLE_EQ(whole.forward_flops, product);
  EXPECT_DOUBLE_EQ(whole.backward_flops, 3 * product);
  problem.keep_logits = 4096;
  problem.chunking = {Chunking::Rule::rows, 1024};
  EXPECT_DOUBLE_EQ(plan_of(problem).backward_flops, 2.5 * product);
}

TEST(Plan, KeptLogitsAreWholeChunksInSaved) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::rows, 1000};
  problem.keep_logits = 1500;
  const Plan plan = plan_of(problem);
  EXPECT_EQ(plan.kept_rows, 2000);
  EXPECT_GE(plan.saved_bytes, std::size_t{2000} * 128256 * 2);
  problem.keep_logits = 0;
  EXPECT_LT(plan_of(problem).saved_bytes, std::size_t{8192} * 64);
}

TEST(Plan, KeepsNoMoreRowsThanThereAre) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::rows, 1000};
  for (const std::int64_t keep : {std::int64_t{8193}, largest}) {
    problem.keep_logits = keep;
    EXPECT_EQ(plan_of(problem).kept_rows, 8192) << keep;
    EXPECT_DOUBLE_EQ(plan_of(problem).backward_flops, 4.0 * 8192 * 4096 * 128256) << keep;
  }
}

TEST(Plan, GroupOfOneHasNoCollectives) { EXPECT_TRUE(plan_of(llama()).collectives.empty()); }

TEST(Plan, NothingOfTheLogitsSizeCrossesTheWire) {
  Problem problem = llama();
  problem.chunking = {Chunking::Rule::rows, 1024};
  for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
    problem.layout = layout;
    const Plan plan = plan_of(problem, 2);
    ASSERT_FALSE(plan.collectives.empty());
    for (const PlannedCollective& item : plan.collectives) {
      EXPECT_GT(item.calls, 0) << item.name;
      EXPECT_LE(item.bytes, std::int64_t{8192} * 4096 * 4) << item.way << " " << item.name;
    }
  }
}

TEST(Plan, WorkspaceOfAChunkDoesNotGrowWithTheRows) {
  for (DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (Layout layout : {Layout::replicated, Layout::row_sharded}) {
      for (int ranks : {1, 2, 8}) {
        Problem problem = llama();
        problem.layout = layout;
        problem.bias = true;
        problem.chunking = {Chunking::Rule::rows, 1024};
        const Plan few = plan_of(problem, ranks, 0, device);
        problem.max_rows = std::int64_t{1} << 22;
        const Plan many = plan_of(problem, ranks, 0, device);
        EXPECT_EQ(many.workspace_bytes, few.workspace_bytes)
            << name(device) << " P " << ranks << " " << name(layout);
        // What grows is a record a row.
        EXPECT_LE(many.saved_bytes, std::size_t{64} << 22);
      }
    }
  }
}

// 29 rows on five ranks make chunks of one or two rows of each: five chunks of 6 do not hold them.
TEST(Plan, CountsTheChunksOfEvenlySpreadRows) {
  Problem problem = plain_problem(29, 11, 37);
  problem.chunking = {Chunking::Rule::rows, 6};
  EXPECT_EQ(plan_of(problem, 5).chunks, 5);
  problem.layout = Layout::row_sharded;
  EXPECT_EQ(plan_of(problem, 5).chunks, 6);
}

TEST(Plan, IsAPureFunction) {
  Problem problem = llama();
  problem.keep_logits = 100;
  EXPECT_EQ(to_string(plan_of(problem, 3, 1)), to_string(plan_of(problem, 3, 1)));
}

TEST(Plan, SurvivesSizesPastThirtyTwoBits) {
  Problem problem = plain_problem(std::int64_t{1} << 20, 16384, (std::int64_t{1} << 31) - 1);
  problem.chunking = {Chunking::Rule::rows, 8192};
  const Plan plan = plan_of(problem);
  EXPECT_GE(plan.workspace_bytes, std::size_t{8192} * ((std::size_t{1} << 31) - 1) * 4);
  EXPECT_GT(plan.forward_flops, 7e19);
}

// The bounds of problem.hpp leave every count within 63 bits.
TEST(Plan, CountsWithoutOverflowAtTheBounds) {
  const double rows = 0x1p40;
  const double columns = 0x1p16;
  for (DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const auto& [ranks, layout] :
         {std::pair{1, Layout::replicated}, std::pair{1 << 12, Layout::replicated},
          std::pair{1 << 12, Layout::row_sharded}}) {
      const DType dtype = device == DeviceKind::cpu ? DType::float64 : DType::float32;
      Problem problem = plain_problem(std::int64_t{1} << 40, 1 << 16, 1 << 16, dtype);
      problem.shard_widths.assign(static_cast<std::size_t>(ranks), 0);
      problem.shard_widths[0] = 1 << 16;
      problem.layout = layout;
      problem.row_index = true;
      problem.keep_logits = largest;
      problem.chunking = {Chunking::Rule::rows, largest};
      const Plan plan = plan_of(problem, ranks, 0, device);
      const auto each = static_cast<double>(size_of(dtype));
      EXPECT_EQ(plan.chunks, 1);
      EXPECT_EQ(plan.kept_rows, problem.max_rows);
      EXPECT_GE(static_cast<double>(plan.workspace_bytes), 3 * rows * columns * each);
      EXPECT_LT(static_cast<double>(plan.workspace_bytes), 0x1p63);
      EXPECT_GE(static_cast<double>(plan.saved_bytes), rows * columns * each);
      for (const PlannedCollective& item : plan.collectives) EXPECT_GT(item.bytes, 0) << item.name;
      problem.chunking.value = 1;
      EXPECT_EQ(plan_of(problem, ranks, 0, device).chunks, problem.max_rows);
    }
  }
}

TEST(Plan, NoRowsIsAPlanLikeAnother) {
  const Plan plan = plan_of(plain_problem(0, 4, 8), 2);
  EXPECT_EQ(plan.chunks, 0);
  EXPECT_GE(plan.chunk_rows, 1);
}

struct Refusal {
  const char* name;
  std::function<void(Problem&)> bend;
  std::initializer_list<std::string_view> parts;
};

TEST(Plan, RefusesBadProblemsNamingFieldAndValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Refusal refusals[] = {
      {"rows", [](Problem& p) { p.max_rows = -3; }, {"max_rows", "-3"}},
      {"hidden", [](Problem& p) { p.hidden = 0; }, {"hidden", "0"}},
      {"vocab", [](Problem& p) { p.vocab = 0; }, {"vocab", "0"}},
      {"padded", [](Problem& p) { p.vocab_padded = 7; }, {"vocab_padded", "7", "8"}},
      {"integers", [](Problem& p) { p.dtype = DType::int32; }, {"dtype", "int32"}},
      {"chunk",
       [](Problem& p) {
         p.chunking = {Chunking::Rule::rows, 0};
       },
       {"chunking", "rows"}},
      {"ratio",
       [](Problem& p) {
         p.chunking = {Chunking::Rule::aspect_ratio, -1};
       },
       {"aspect_ratio", "-1"}},
      {"rows past 2^40",
       [](Problem& p) { p.max_rows = (std::int64_t{1} << 40) + 1; },
       {"max_rows", "1099511627777", "2^40"}},
      {"most rows", [](Problem& p) { p.max_rows = largest; }, {"max_rows", "9223372036854775807"}},
      {"hidden past 2^31", [](Problem& p) { p.hidden = largest; }, {"hidden", "2^31"}},
      {"vocab past 2^31", [](Problem& p) { p.vocab = largest; }, {"vocab", "2^31"}},
      {"padded past 2^31",
       [](Problem& p) { p.vocab_padded = largest; },
       {"vocab_padded", "9223372036854775807", "2^31"}},
      {"rows by hidden",
       [](Problem& p) {
         p.max_rows = std::int64_t{1} << 40;
         p.hidden = (1 << 16) + 1;
       },
       {"max_rows x hidden", "1099511627776 x 65537", "2^56"}},
      {"rows by vocab",
       [](Problem& p) {
         p.max_rows = std::int64_t{1} << 40;
         p.vocab = (1 << 16) + 1;
       },
       {"max_rows x vocab", "1099511627776 x 65537", "2^56"}},
      {"rows by padded vocab",
       [](Problem& p) {
         p.max_rows = std::int64_t{1} << 40;
         p.vocab_padded = (1 << 16) + 1;
       },
       {"max_rows x vocab_padded", "1099511627776 x 65537", "2^56"}},
      {"vocab by hidden",
       [](Problem& p) {
         p.vocab = std::int64_t{1} << 30;
         p.hidden = std::int64_t{1} << 30;
       },
       {"vocab x hidden", "1073741824 x 1073741824", "2^56"}},
      {"keep", [](Problem& p) { p.keep_logits = -1; }, {"keep_logits", "-1"}},
      {"smoothing", [](Problem& p) { p.label_smoothing = 1.5; }, {"label_smoothing", "1.5"}},
      {"hardly",
       [](Problem& p) { p.label_smoothing = 1.0000001; },
       {"label_smoothing", "1.0000001,"}},
      {"smoothing nan", [nan](Problem& p) { p.label_smoothing = nan; }, {"label_smoothing", "nan"}},
      {"cap", [](Problem& p) { p.softcap = -2; }, {"softcap", "-2"}},
      {"scale", [nan](Problem& p) { p.logit_scale = nan; }, {"logit_scale", "nan"}},
      {"z-loss", [nan](Problem& p) { p.z_loss = nan; }, {"z_loss", "nan"}},
      {"cap past float", [](Problem& p) { p.softcap = 1e300; }, {"softcap", "1e+300", "1e+30 "}},
      {"cap past what u takes",
       [](Problem& p) { p.softcap = 2e30; },
       {"softcap", "2e+30", "1e+30 "}},
      {"scale over cap",
       [](Problem& p) {
         p.logit_scale = 1e20;
         p.softcap = 1e-20;
       },
       {"logit_scale / softcap", "1e+40", "1e+30 "}},
      {"cap below float", [](Problem& p) { p.softcap = 1e-60; }, {"softcap", "1e-60", "1e-30"}},
      {"scale below float",
       [](Problem& p) { p.logit_scale = -1e-39; },
       {"logit_scale", "-1e-39", "1e-30"}},
      {"an ignored class of soft targets",
       [](Problem& p) {
         p.soft_targets = true;
         p.ignore_index = 3;
       },
       {"ignore_index", "3", "soft_targets"}},
      {"scale past float",
       [](Problem& p) { p.logit_scale = -1e39; },
       {"logit_scale", "-1e+39", "1e+30 "}},
      {"z-loss past float", [](Problem& p) { p.z_loss = 1e300; }, {"z_loss", "1e+300", "float32"}},
      {"normalizer",
       [](Problem& p) {
         p.reduction = Reduction::none;
         p.normalizer = true;
       },
       {"normalizer", "none"}},
      {"megatron of 1",
       [](Problem& p) {
         p.vocab = 1;
         p.label_smoothing = 0.1;
         p.label_smoothing_form = SmoothingForm::megatron;
       },
       {"megatron", "1"}},
      {"megatron past 1",
       [](Problem& p) {
         p.label_smoothing = 0.95;  // 0.95 * 8 / 7 > 1
         p.label_smoothing_form = SmoothingForm::megatron;
       },
       {"label_smoothing", "0.95", "8"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.name);
    Problem problem = plain_problem(4, 2, 8);
    refusal.bend(problem);
    expect_error(ErrorCode::invalid_argument, refusal.parts, [&] { plan_of(problem); });
  }
}

TEST(Plan, NumbersPastFloatAreForFloat64) {
  Problem problem = plain_problem(4, 2, 8, DType::float64);
  problem.softcap = 1e290;
  problem.logit_scale = -1e290;
  problem.z_loss = -1e300;
  EXPECT_NO_THROW(plan_of(problem));
  problem.dtype = DType::bfloat16;
  expect_error(ErrorCode::invalid_argument, {"logit_scale", "-1e+290"}, [&] { plan_of(problem); });
  problem = plain_problem(4, 2, 8);
  problem.z_loss = std::numeric_limits<float>::max();
  problem.softcap = problem.logit_scale = 1e30;
  EXPECT_NO_THROW(plan_of(problem));
  problem.softcap = problem.logit_scale = 1e-30;
  EXPECT_NO_THROW(plan_of(problem));
  problem.z_loss = 1e-60;  // is 0
  EXPECT_NO_THROW(plan_of(problem));
}

TEST(Plan, RefusesWidthsWhoseSumWrapsAround) {
  Problem problem = plain_problem(4, 2, 10);
  problem.shard_widths = {largest, largest, 12};  // 10 in 64 bits
  expect_error(ErrorCode::mismatch, {"shard_widths[0]", "9223372036854775807", "10"},
               [&] { plan_of(problem, 3); });
  problem.shard_widths = {1, largest, largest, 11};
  expect_error(ErrorCode::mismatch, {"shard_widths[1]", "9223372036854775807", "10"},
               [&] { plan_of(problem, 4); });
}

TEST(Plan, RefusesMoreRanksThanAMillion) {
  Problem problem = plain_problem(4, 2, 8);
  EXPECT_NO_THROW(plan_of(problem, 1 << 20));
  expect_error(ErrorCode::invalid_argument, {"1048577 ranks", "2^20"},
               [&] { plan_of(problem, (1 << 20) + 1); });
  expect_error(ErrorCode::invalid_argument, {"1048577 ranks", "2^20"},
               [&] { make_shards(problem, (1 << 20) + 1); });
  problem.max_rows = (std::int64_t{1} << 32) + 1;
  expect_error(ErrorCode::invalid_argument, {"ranks x max_rows", "1048576 x 4294967297", "2^52"},
               [&] { plan_of(problem, 1 << 20); });
}

TEST(Plan, Float64IsTheCpusAlone) {
  EXPECT_NO_THROW(plan_of(plain_problem(4, 2, 8, DType::float64)));
  expect_error(ErrorCode::invalid_argument, {"float64"},
               [&] { plan_of(plain_problem(4, 2, 8, DType::float64), 1, 0, DeviceKind::cuda); });
}

TEST(Plan, CallsOnDevicesCloseWithAnExchange) {
  const auto closings = [](const Plan& plan) {
    std::int64_t calls = 0;
    for (const PlannedCollective& item : plan.collectives)
      if (item.name == "closing") calls += item.calls;
    return calls;
  };
  EXPECT_EQ(closings(plan_of(llama(), 2, 0, DeviceKind::cpu)), 0);
  EXPECT_GT(closings(plan_of(llama(), 2, 0, DeviceKind::cuda)), 0);
  EXPECT_EQ(closings(plan_of(llama(), 1, 0, DeviceKind::cuda)), 0);
}

TEST(Plan, RefusesRanksOutsideTheGroup) {
  for (const auto& [ranks, rank] : {std::pair{0, 0}, std::pair{2, 2}, std::pair{2, -1}})
    EXPECT_THROW(plan_of(plain_problem(4, 2, 8), ranks, rank), Error) << ranks << " " << rank;
}

TEST(Plan, TextNamesEveryBuffer) {
  const Plan plan = plan_of(llama(), 2);
  const std::string text = to_string(plan);
  for (const PlannedBuffer& buffer : plan.buffers)
    EXPECT_NE(text.find(buffer.name), std::string::npos) << buffer.name;
  for (const PlannedCollective& item : plan.collectives)
    EXPECT_NE(text.find(item.kind), std::string::npos) << item.kind;
}

}  // namespace
}  // namespace shardloss::test
