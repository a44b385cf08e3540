#include "hidden_layers.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "products.hpp"

namespace language_model {
namespace {

/// output [rows, n] = input [rows, k] weight + bias
void affine(const std::vector<float>& input, const Parameters& weight, const Parameters& bias,
            std::int64_t rows, std::vector<float>& output) {
  output.resize(static_cast<std::size_t>(rows * weight.columns));
  for (std::int64_t i = 0; i < rows; ++i)
    std::copy(bias.value.begin(), bias.value.end(), output.begin() + i * weight.columns);
  multiply(Form::plain, Form::plain, rows, weight.columns, weight.rows, input.data(),
           weight.value.data(), 1.0F, output.data());
}

/// Adds to the gradients of an affine layer; grad_input = grad_output weight^T.
void affine_backward(const std::vector<float>& input, const std::vector<float>& grad_output,
                     Parameters& weight, Parameters& bias, std::int64_t rows,
                     std::vector<float>& grad_input) {
  multiply(Form::transposed, Form::plain, weight.rows, weight.columns, rows, input.data(),
           grad_output.data(), 1.0F, weight.gradient.data());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < weight.columns; ++j)
      bias.gradient[static_cast<std::size_t>(j)] +=
          grad_output[static_cast<std::size_t>(i * weight.columns + j)];
  grad_input.resize(static_cast<std::size_t>(rows * weight.rows));
  multiply(Form::plain, Form::transposed, rows, weight.rows, weight.columns, grad_output.data(),
           weight.value.data(), 0.0F, grad_input.data());
}

}  // namespace

HiddenLayers::HiddenLayers(const LayerSizes& sizes, std::uint64_t seed) : sizes_(sizes) {
  std::int64_t inputs = sizes.context * sizes.width;
  for (std::int64_t l = 0; l < sizes.layers; ++l) {
    add_layer("hidden." + std::to_string(l), inputs, sizes.hidden, std::sqrt(2.0), seed);
    inputs = sizes.hidden;
  }
  add_layer("output", inputs, sizes.width, 1.0, seed);
  inputs_.resize(layers());
  active_.resize(layers());
}

void HiddenLayers::add_layer(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                             double gain, std::uint64_t seed) {
  parameters_.push_back(Parameters::whole(name + ".weight", inputs, outputs));
  parameters_.back().randomize(seed, gain / std::sqrt(static_cast<double>(inputs)));
  parameters_.push_back(Parameters::whole(name + ".bias", 1, outputs));
}

std::vector<float>& HiddenLayers::forward(const std::vector<float>& embedded,
                                          std::int64_t sequences) {
  sequences_ = sequences;
  const std::int64_t rows = sequences * sizes_.length;
  cut_windows(embedded);
  const std::size_t last = layers() - 1;
  for (std::size_t l = 0; l < last; ++l) {
    affine(inputs_[l], weight(l), bias(l), rows, active_[l]);
    for (float& value : active_[l]) value = std::max(value, 0.0F);
    inputs_[l + 1] = active_[l];
    if (l > 0)
      for (std::size_t i = 0; i < active_[l].size(); ++i) inputs_[l + 1][i] += inputs_[l][i];
  }
  affine(inputs_[last], weight(last), bias(last), rows, output_);
  return output_;
}

std::vector<float>& HiddenLayers::backward(const std::vector<float>& grad_output) {
  const std::int64_t rows = sequences_ * sizes_.length;
  const std::size_t last = layers() - 1;
  std::vector<float> grad;  // of the input of the layer above
  affine_backward(inputs_[last], grad_output, weight(last), bias(last), rows, grad);
  std::vector<float> grad_active;
  std::vector<float> grad_input;
  for (std::size_t l = last; l-- > 0;) {
    grad_active = grad;
    for (std::size_t i = 0; i < grad.size(); ++i)
      if (active_[l][i] <= 0) grad_active[i] = 0;
    affine_backward(inputs_[l], grad_active, weight(l), bias(l), rows, grad_input);
    if (l > 0)
      for (std::size_t i = 0; i < grad.size(); ++i) grad_input[i] += grad[i];  // the shortcut's
    grad.swap(grad_input);
  }
  paste_windows(grad);
  return grad_embedded_;
}

void HiddenLayers::cut_windows(const std::vector<float>& embedded) {
  const std::int64_t window = sizes_.context * sizes_.width;
  auto& windows = inputs_[0];
  windows.resize(static_cast<std::size_t>(sequences_ * sizes_.length * window));
  auto to = windows.begin();
  for (std::int64_t s = 0; s < sequences_; ++s) {
    auto from = embedded.begin() + s * (sizes_.length + sizes_.context - 1) * sizes_.width;
    for (std::int64_t i = 0; i < sizes_.length; ++i, from += sizes_.width)
      to = std::copy_n(from, window, to);
  }
}

void HiddenLayers::paste_windows(const std::vector<float>& grad_windows) {
  const std::int64_t window = sizes_.context * sizes_.width;
  const std::int64_t embedded = (sizes_.length + sizes_.context - 1) * sizes_.width;
  grad_embedded_.assign(static_cast<std::size_t>(sequences_ * embedded), 0.0F);
  auto from = grad_windows.begin();
  for (std::int64_t s = 0; s < sequences_; ++s) {
    auto to = grad_embedded_.begin() + s * embedded;
    for (std::int64_t i = 0; i < sizes_.length; ++i, from += window, to += sizes_.width)
      std::transform(from, from + window, to, to, std::plus<>());
  }
}

}  // namespace language_model
