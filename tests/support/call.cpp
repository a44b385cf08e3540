#include "call.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "elements.hpp"
#include "world.hpp"

namespace shardloss::test {
namespace {

DType grad_dtype(GradDType wanted, DType own) {
  return wanted == GradDType::float32 ? DType::float32 : own;
}

/// Small numbers that every dtype holds, for gradients to be added to.
std::vector<double> held_before(std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<double>((i * 37) % 11 - 5) / 64);
  return values;
}

std::vector<double> slice(const std::vector<double>& values, std::int64_t first, std::int64_t count,
                          std::int64_t width = 1) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(count * width)};
}

std::vector<std::int64_t> integers(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

void append(std::vector<std::byte>& all, const std::vector<std::byte>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

Tensors::Tensors(const Sample& sample, int rank, int ranks, Device device, const Style& style)
    : problem_(sample.problem),
      shard_(make_shards(sample.problem, ranks)[static_cast<std::size_t>(rank)]),
      style_(style),
      device_(device),
      rows_(sample.own_rows(rank)) {
  place_inputs(sample, rank);
  place_row_values(sample, rank);
  place_outputs(sample);
  place_gradients(sample);
  if (problem_.layout == Layout::replicated) return;
  for (int r = 0; r < ranks; ++r) {
    std::int64_t computed = sample.own_rows(r);
    if (sample.data.row_index) {
      const std::int64_t first = sample.first_row(r);
      computed = std::count_if(
          sample.data.row_index->begin(), sample.data.row_index->end(),
          [&](std::int64_t i) { return i >= first && i < first + sample.own_rows(r); });
    }
    rows_per_rank_.push_back(computed);
  }
}

void Tensors::place_inputs(const Sample& sample, int rank) {
  const ReferenceProblem& data = sample.data;
  const std::int64_t d = problem_.hidden;
  const DType real = real_dtype(problem_);
  hidden = DeviceArray(problem_.dtype, rows_, d, d + style_.pad, device_);
  hidden.write(slice(data.hidden, sample.first_row(rank), rows_, d));
  weight = DeviceArray(problem_.dtype, shard_.width, d, d + style_.pad, device_);
  weight.write(slice(data.weight, shard_.first, shard_.width, d));
  if (problem_.bias) {
    bias = DeviceArray(problem_.dtype, shard_.width, 1, device_);
    bias.write(slice(data.bias, shard_.first, shard_.width));
  }
  if (problem_.soft_targets) {
    // The rows of the whole group, this rank's columns.
    soft_targets = DeviceArray(real, data.rows, shard_.width, shard_.width + style_.pad, device_);
    std::vector<double> values;
    for (std::int64_t i = 0; i < data.rows; ++i) {
      const auto row = slice(data.soft_targets, i * data.vocab_padded + shard_.first, shard_.width);
      values.insert(values.end(), row.begin(), row.end());
    }
    soft_targets.write(values);
  } else {
    targets = DeviceArray(style_.target_dtype, rows_, style_.target_stride, device_);
    const auto begin = data.targets.begin() + static_cast<std::ptrdiff_t>(sample.first_row(rank));
    targets.write(std::vector<std::int64_t>(begin, begin + static_cast<std::ptrdiff_t>(rows_)));
  }
  if (problem_.class_weights) {
    class_weights = DeviceArray(real, problem_.vocab, 1, device_);
    class_weights.write(data.class_weights);
  }
  if (problem_.normalizer) {
    normalizer = DeviceArray::one(real, device_);
    normalizer.write(std::vector<double>{*data.normalizer});
  }
}

DeviceArray Tensors::per_row(const std::vector<double>& values, int rank, const Sample& sample) {
  if (values.empty()) return {};
  // One value serves all rows, unless there is but one row and it has a loss of its own.
  const bool serves_all =
      values.size() == 1 && (sample.data.rows != 1 || problem_.reduction != Reduction::none);
  if (serves_all) {
    DeviceArray array = DeviceArray::one(real_dtype(problem_), device_);
    array.write(values);
    return array;
  }
  DeviceArray array(real_dtype(problem_), rows_, style_.value_stride, device_);
  array.write(slice(values, sample.first_row(rank), rows_));
  return array;
}

void Tensors::place_row_values(const Sample& sample, int rank) {
  const ReferenceProblem& data = sample.data;
  if (!data.token_weights.empty()) {
    token_weights = DeviceArray(real_dtype(problem_), rows_, style_.value_stride, device_);
    token_weights.write(slice(data.token_weights, sample.first_row(rank), rows_));
  }
  up_loss = per_row(data.upstream_loss, rank, sample);
  up_lse = per_row(data.upstream_lse, rank, sample);
  up_logprob = per_row(data.upstream_logprob, rank, sample);
  up_entropy = per_row(data.upstream_entropy, rank, sample);
  if (!data.row_index) return;
  std::vector<std::int64_t> own;
  for (const std::int64_t i : *data.row_index)
    if (i >= sample.first_row(rank) && i < sample.first_row(rank) + rows_)
      own.push_back(i - sample.first_row(rank));
  row_index = DeviceArray(DType::int64, static_cast<std::int64_t>(own.size()), 1, device_);
  row_index.write(own);
}

void Tensors::place_outputs(const Sample&) {
  if (!style_.outputs) return;
  const DType real = real_dtype(problem_);
  const auto rows = [&](DType dtype) {
    return DeviceArray(dtype, rows_, style_.value_stride, device_);
  };
  loss = problem_.reduction == Reduction::none ? rows(real) : DeviceArray::one(real, device_);
  row_loss = rows(real);
  lse = rows(real);
  if (!problem_.soft_targets) target_logprob = rows(real);
  if (!problem_.soft_targets && style_.argmax) correct = rows(DType::uint8);
  if (problem_.entropy) entropy = rows(real);
  if (style_.argmax) argmax = rows(DType::int64);
  counted_rows = DeviceArray::one(DType::int64, device_);
  cross_entropy = DeviceArray::one(real, device_);
  z_loss = DeviceArray::one(real, device_);
}

void Tensors::place_gradients(const Sample&) {
  const std::int64_t d = problem_.hidden;
  if (style_.grad_hidden && problem_.grad_hidden != GradDType::none)
    grad_hidden = DeviceArray(grad_dtype(problem_.grad_hidden, problem_.dtype), rows_, d,
                              d + style_.pad, device_);
  if (style_.grad_weight && problem_.grad_weight != GradDType::none) {
    const DType dtype = grad_dtype(problem_.grad_weight, problem_.dtype);
    grad_weight = DeviceArray(dtype, shard_.width, d, d + style_.pad, device_);
    if (problem_.bias) grad_bias = DeviceArray(dtype, shard_.width, 1, device_);
  }
  if (style_.accumulate) reset();
}

void Tensors::reset() {
  for (DeviceArray* array : {&loss, &row_loss, &lse, &target_logprob, &entropy, &argmax, &correct,
                             &counted_rows, &cross_entropy, &z_loss})
    if (!array->empty()) array->poison();
  for (DeviceArray* array : {&grad_hidden, &grad_weight, &grad_bias}) {
    if (array->empty()) continue;
    if (style_.accumulate)
      array->write(held_before(array->elements()));
    else
      array->poison();
  }
}

void Tensors::set_upstream(double value) {
  up_loss = DeviceArray::one(real_dtype(problem_), device_);
  up_loss.write(std::vector<double>{value});
}

Inputs Tensors::inputs() const {
  Inputs in;
  in.hidden = hidden.tensor();
  in.weight = weight.tensor();
  in.bias = bias.tensor();
  in.targets = targets.tensor();
  in.soft_targets = soft_targets.tensor();
  in.token_weights = token_weights.tensor();
  in.class_weights = class_weights.tensor();
  in.normalizer = normalizer.tensor();
  in.row_index = row_index.tensor();
  in.rows_per_rank = rows_per_rank_;
  return in;
}

ConstTensor Tensors::upstream(const DeviceArray& array) const {
  const Tensor view = array.tensor();
  if (!view.given() || view.dims() == 1 || !style_.expand || &array == &up_loss) return view;
  return ConstTensor(array.data(), view.dtype(), rows_, 0, device_);
}

Upstreams Tensors::upstreams() const {
  return {upstream(up_loss), upstream(up_lse), upstream(up_logprob), upstream(up_entropy)};
}

Outputs Tensors::outputs() const {
  Outputs out;
  if (!style_.outputs) return out;
  out.loss = loss.tensor();
  out.row_loss = row_loss.tensor();
  out.lse = lse.tensor();
  out.target_logprob = target_logprob.tensor();
  out.entropy = entropy.tensor();
  out.argmax = argmax.tensor();
  out.correct = correct.tensor();
  out.counted_rows = counted_rows.tensor();
  out.cross_entropy = cross_entropy.tensor();
  out.z_loss = z_loss.tensor();
  return out;
}

Gradients Tensors::gradients() const {
  Gradients grad;
  grad.hidden = grad_hidden.tensor();
  grad.weight = grad_weight.tensor();
  grad.bias = grad_bias.tensor();
  grad.accumulate_hidden = grad.accumulate_weight = grad.accumulate_bias = style_.accumulate;
  return grad;
}

Answer Tensors::answer() const {
  Answer answer;
  answer.loss = loss.read();
  answer.row_loss = row_loss.read();
  answer.lse = lse.read();
  answer.target_logprob = target_logprob.read();
  answer.entropy = entropy.read();
  answer.argmax = integers(argmax.read());
  answer.correct = integers(correct.read());
  answer.counted_rows = integers(counted_rows.read());
  answer.cross_entropy = cross_entropy.read();
  answer.z_loss = z_loss.read();
  answer.grad_hidden = grad_hidden.read();
  answer.grad_weight = grad_weight.read();
  answer.grad_bias = grad_bias.read();
  if (style_.accumulate) {
    answer.before_hidden = held_before(grad_hidden.elements());
    answer.before_weight = held_before(grad_weight.elements());
    answer.before_bias = held_before(grad_bias.elements());
  }
  return answer;
}

std::vector<std::byte> Tensors::replicated_bytes() const {
  std::vector<std::byte> all;
  for (const DeviceArray* array : {&counted_rows, &cross_entropy, &z_loss})
    append(all, array->bytes());
  const bool replicated = problem_.layout == Layout::replicated;
  if (replicated || problem_.reduction != Reduction::none) append(all, loss.bytes());
  if (replicated)
    for (const DeviceArray* array :
         {&row_loss, &lse, &target_logprob, &entropy, &argmax, &correct, &grad_hidden})
      append(all, array->bytes());
  return all;
}

std::vector<std::byte> Tensors::all_bytes() const {
  std::vector<std::byte> all = replicated_bytes();
  for (const DeviceArray* array : {&loss, &row_loss, &lse, &target_logprob, &entropy, &argmax,
                                   &correct, &grad_hidden, &grad_weight, &grad_bias})
    append(all, array->bytes());
  return all;
}

std::string Tensors::overwritten() const {
  const std::pair<const char*, const DeviceArray*> arrays[] = {
      {"hidden", &hidden},
      {"weight", &weight},
      {"targets", &targets},
      {"loss", &loss},
      {"row_loss", &row_loss},
      {"lse", &lse},
      {"target_logprob", &target_logprob},
      {"entropy", &entropy},
      {"argmax", &argmax},
      {"correct", &correct},
      {"counted_rows", &counted_rows},
      {"cross_entropy", &cross_entropy},
      {"z_loss", &z_loss},
      {"grad_hidden", &grad_hidden},
      {"grad_weight", &grad_weight},
      {"grad_bias", &grad_bias},
  };
  for (const auto& [name, array] : arrays)
    if (!array->intact()) return name;
  return "";
}

void run(const Loss& loss, const Tensors& tensors, Way way) {
  Execution on;
  on.stream = test_stream();
  if (way == Way::fused) {
    loss.forward_backward(tensors.inputs(), tensors.outputs(), tensors.upstreams(),
                          tensors.gradients(), on);
  } else {
    Saved saved = loss.make_saved();
    loss.forward(tensors.inputs(), tensors.outputs(), &saved, on);
    loss.backward(tensors.inputs(), saved, tensors.upstreams(), tensors.gradients(), on);
    loss.wait(on.stream);
    return;
  }
  loss.wait(on.stream);
}

namespace {

// gathered(values): those of all ranks, one rank after the other.
template <class Gathered>
Answer joined(const Sample& sample, const Answer& mine, const Gathered& gathered) {
  Answer all = mine;
  const auto join = [&](std::vector<double>& values) { values = gathered(values); };
  const auto join_integers = [&](std::vector<std::int64_t>& values) {
    values = integers(gathered(std::vector<double>(values.begin(), values.end())));
  };
  join(all.grad_weight);
  join(all.grad_bias);
  join(all.before_weight);
  join(all.before_bias);
  if (sample.problem.layout == Layout::replicated) return all;
  if (sample.problem.reduction == Reduction::none) join(all.loss);
  join(all.row_loss);
  join(all.lse);
  join(all.target_logprob);
  join(all.entropy);
  join_integers(all.argmax);
  join_integers(all.correct);
  join(all.grad_hidden);
  join(all.before_hidden);
  return all;
}

}  // namespace

Answer whole(const Sample& sample, const Answer& mine, int ranks) {
  if (ranks == 1) return mine;
  return joined(sample, mine, [](const std::vector<double>& values) { return gather(values); });
}

Answer whole(const Sample& sample, const Answer& mine, const Communicator& group) {
  return joined(sample, mine,
                [&](const std::vector<double>& values) { return gather(group, values); });
}

namespace {

// The outputs whose worst element is past `times` what is allowed. `exact` is what they should be.
std::string worst_elements(const Sample& sample, const ReferenceResult& exact, const Answer& answer,
                           const Plan& plan, double times) {
  const double sums = static_cast<double>(std::max<std::int64_t>(plan.chunks, plan.ranks));
  const tolerance::Allowed allowed =
      tolerance::allowed(sample.problem, plan.logits_dtype, exact.logit_magnitude, sums);
  std::ostringstream text;
  for (const Comparison& worst : compare_all(sample.data, exact, answer, allowed)) {
    if (worst.share <= times) continue;
    text << worst.output << "[" << worst.row << ", " << worst.column << "]: got " << worst.got
         << ", want " << worst.want << ", " << worst.share << " of what is allowed\n";
  }
  return text.str();
}

}  // namespace

std::string differences(const Sample& sample, const Answer& answer, const Plan& plan) {
  return worst_elements(sample, reference(sample.data), answer, plan, 1);
}

std::string disagreements(const Sample& sample, const Answer& got, const Answer& want,
                          const Plan& plan, double times) {
  ReferenceResult exact = reference(sample.data);
  exact.loss = want.loss;
  exact.row_loss = want.row_loss;
  exact.lse = want.lse;
  exact.target_logprob = want.target_logprob;
  exact.entropy = want.entropy;
  exact.argmax = want.argmax;
  exact.correct = want.correct;
  exact.cross_entropy = want.cross_entropy.front();
  exact.z_loss = want.z_loss.front();
  exact.counted_rows = want.counted_rows.front();
  exact.grad_hidden = want.grad_hidden;
  exact.grad_weight = want.grad_weight;
  exact.grad_bias = want.grad_bias;
  return worst_elements(sample, exact, got, plan, times);
}

std::string check(const Sample& sample, const Communicator& communicator, Way way,
                  const Style& style) {
  const Loss loss(sample.problem, communicator, device());
  const Tensors tensors(sample, communicator.rank(), communicator.size(), device(), style);
  run(loss, tensors, way);
  std::string text =
      differences(sample, whole(sample, tensors.answer(), communicator), loss.plan());
  if (const std::string name = tensors.overwritten(); !name.empty())
    text += name + " was written outside its elements\n";
  if (!same_everywhere(communicator, tensors.replicated_bytes()))
    text += "ranks differ in replicated outputs\n";
  return text;
}

}  // namespace shardloss::test
