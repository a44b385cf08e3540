// The CUDA backend against the CPU backend, on random problems with every option.
#include <map>

#include "gpu_test.hpp"
#ifdef SHARDLOSS_TEST_MPI
#include "shardloss/mpi.hpp"
#endif

namespace shardloss::test {
namespace {

class Agreement : public GpuTest {
 protected:
  static Communicator cpu_group() {
#ifdef SHARDLOSS_TEST_MPI
    return from_mpi(MPI_COMM_WORLD, std::chrono::seconds(60));
#else
    return self();
#endif
  }
};

Answer answer_on(const Sample& sample, const Communicator& group, Device where, Way way,
                 const Style& style) {
  const Loss loss(sample.problem, group, where);
  const Tensors tensors(sample, rank(), ranks(), where, style);
  run(loss, tensors, way);
  return whole(sample, tensors.answer(), ranks());
}

/// What a run of samples has had in it.
void note_options(const Sample& sample, Way way, std::map<std::string, int>& seen) {
  const Problem& p = sample.problem;
  const auto note = [&](const char* option, bool on) { seen[option] += on ? 1 : 0; };
  note("bias", p.bias);
  note("class_weights", p.class_weights);
  note("soft_targets", p.soft_targets);
  note("softcap", p.softcap > 0);
  note("logit_scale", p.logit_scale != 1);
  note("label_smoothing", p.label_smoothing > 0);
  note("megatron's form", p.label_smoothing_form == SmoothingForm::megatron);
  note("z_loss", p.z_loss != 0);
  note("entropy", p.entropy);
  note("normalizer", p.normalizer);
  note("row_index", sample.data.row_index.has_value());
  note("token_weights", !sample.data.token_weights.empty());
  note("padding", sample.data.vocab_padded > p.vocab);
  note("keep_logits", p.keep_logits > 0 && way == Way::two_step);
  note("accurate", p.accumulation == Accumulation::accurate);
  note("row_sharded", p.layout == Layout::row_sharded);
  note("reduction none", p.reduction == Reduction::none);
  note("reduction sum", p.reduction == Reduction::sum);
  note("reduction mean", p.reduction == Reduction::mean);
  note("upstream of loss", !sample.data.upstream_loss.empty());
  note("upstream of lse", !sample.data.upstream_lse.empty());
  note("upstream of target_logprob", !sample.data.upstream_logprob.empty());
  note("upstream of entropy", !sample.data.upstream_entropy.empty());
  note("fp32 gradients", p.grad_weight == GradDType::float32);
}

void expect_agreement(const Communicator& gpus, const Communicator& cpus, DType dtype) {
  constexpr int wanted = 60;
  std::map<std::string, int> options;
  int seen = 0;
  for (std::uint64_t seed = 20000; seen < wanted; ++seed) {
    Sample sample = random_sample(ranks(), seed);
    if (sample.problem.dtype != dtype || sample.data.rows == 0) continue;
    ++seen;
    if (size_of(dtype) == 2 && seen % 8 == 0) {
      sample.problem.accumulation = Accumulation::compact;
      sample.problem.grad_hidden = sample.problem.grad_weight = GradDType::same;
    }
    const Way way = seed % 2 == 0 ? Way::fused : Way::two_step;
    Style style;
    style.target_dtype = seed % 3 == 0 ? DType::int32 : DType::int64;
    style.pad = seed % 5 == 0 ? 3 : 0;
    note_options(sample, way, options);
    const std::string which =
        (way == Way::fused ? "fused " : "two_step ") + describe_options(sample);
    const Answer gpu = answer_on(sample, gpus, device(), way, style);
    const Answer cpu = answer_on(sample, cpus, {}, way, style);
    const Plan plan = make_plan(sample.problem, ranks(), rank(), DeviceKind::cuda);
    const Plan cpu_plan = make_plan(sample.problem, ranks(), rank(), DeviceKind::cpu);
    ASSERT_EQ(disagreements(sample, gpu, cpu, plan, 2), "") << which;
    ASSERT_EQ(differences(sample, gpu, plan), "") << "GPU, " << which;
    ASSERT_EQ(differences(sample, cpu, cpu_plan), "") << "CPU, " << which;
  }
  for (const auto& [option, times] : options)
    EXPECT_GT(times, 0) << option << " was never drawn in " << wanted << " problems";
}

TEST_F(Agreement, OfGpuAndCpuInFloat32) {
  expect_agreement(communicator(), cpu_group(), DType::float32);
}

TEST_F(Agreement, OfGpuAndCpuInBfloat16) {
  expect_agreement(communicator(), cpu_group(), DType::bfloat16);
}

TEST_F(Agreement, OfGpuAndCpuInFloat16) {
  expect_agreement(communicator(), cpu_group(), DType::float16);
}

}  // namespace
}  // namespace shardloss::test
