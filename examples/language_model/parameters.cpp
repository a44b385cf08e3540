#include "parameters.hpp"

#include <cmath>
#include <utility>

namespace language_model {

Parameters Parameters::whole(std::string name, std::int64_t rows, std::int64_t columns) {
  Parameters made = shard(std::move(name), rows, columns, {0, rows});
  made.sharded = false;
  return made;
}

Parameters Parameters::shard(std::string name, std::int64_t rows, std::int64_t columns, Share own) {
  const std::vector<float> zeros(static_cast<std::size_t>(own.count * columns));
  return {std::move(name), rows, columns, own, true, zeros, zeros, zeros, zeros};
}

void Parameters::randomize(std::uint64_t seed, double deviation) {
  std::uint64_t key = hash(seed);
  for (const char c : name) key = hash(key ^ static_cast<unsigned char>(c));
  const auto before = static_cast<std::uint64_t>(own.first * columns);
  const double reach = deviation * std::sqrt(3.0);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double unit = static_cast<double>(hash(key + before + i) >> 11) * 0x1p-53;
    value[i] = static_cast<float>(reach * (2 * unit - 1));
  }
}

void update(Parameters& parameters, const AdamW& adamw, std::int64_t step, double learning_rate) {
  const auto beta1 = static_cast<float>(adamw.beta1);
  const auto beta2 = static_cast<float>(adamw.beta2);
  const auto correction1 =
      static_cast<float>(1 / (1 - std::pow(adamw.beta1, static_cast<double>(step))));
  const auto correction2 =
      static_cast<float>(1 / (1 - std::pow(adamw.beta2, static_cast<double>(step))));
  const auto epsilon = static_cast<float>(adamw.epsilon);
  const auto rate = static_cast<float>(learning_rate);
  const bool decays = parameters.rows > 1 && parameters.columns > 1;
  const float keep = decays ? static_cast<float>(1 - learning_rate * adamw.weight_decay) : 1.0F;
  float* value = parameters.value.data();
  float* gradient = parameters.gradient.data();
  float* first = parameters.first_moment.data();
  float* second = parameters.second_moment.data();
  const std::size_t size = parameters.value.size();
  for (std::size_t i = 0; i < size; ++i) {
    const float g = gradient[i];
    first[i] = beta1 * first[i] + (1 - beta1) * g;
    second[i] = beta2 * second[i] + (1 - beta2) * g * g;
    const float denominator = std::sqrt(second[i] * correction2) + epsilon;
    value[i] = keep * value[i] - rate * first[i] * correction1 / denominator;
    gradient[i] = 0;
  }
}

}  // namespace language_model
