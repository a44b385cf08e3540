/// \file
/// What lies between the embedding and the head; the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "batches.hpp"
#include "parameters.hpp"

namespace language_model {

struct LayerSizes {
  std::int64_t context = 0;  ///< words in a window
  std::int64_t width = 0;    ///< D: of the embedding and of the head
  std::int64_t hidden = 0;   ///< H
  std::int64_t layers = 1;   ///< of H units
  std::int64_t length = 0;   ///< words in a sequence
};

/// window [context D] -> relu [H] -> (layers - 1) x (h + relu(h W + b)) -> [D].
class HiddenLayers {
 public:
  HiddenLayers(const LayerSizes& sizes, std::uint64_t seed);

  /// embedded: [sequences, length + context - 1, D]; returns [sequences * length, D], good until
  /// the next call.
  std::vector<float>& forward(const std::vector<float>& embedded, std::int64_t sequences);

  /// Of the last forward: adds to the gradients; returns the gradient of `embedded`, likewise.
  std::vector<float>& backward(const std::vector<float>& grad_output);

  std::vector<Parameters>& parameters() { return parameters_; }

 private:
  std::size_t layers() const { return parameters_.size() / 2; }
  Parameters& weight(std::size_t layer) { return parameters_[2 * layer]; }
  Parameters& bias(std::size_t layer) { return parameters_[2 * layer + 1]; }
  void add_layer(const std::string& name, std::int64_t inputs, std::int64_t outputs, double gain,
                 std::uint64_t seed);
  void cut_windows(const std::vector<float>& embedded);
  void paste_windows(const std::vector<float>& grad_windows);

  LayerSizes sizes_;
  std::vector<Parameters> parameters_;  // weight, bias of each layer
  std::int64_t sequences_ = 0;
  // inputs_[l]: what layer l read; active_[l]: its relu before a shortcut is added
  std::vector<std::vector<float>> inputs_;
  std::vector<std::vector<float>> active_;
  std::vector<float> output_;
  std::vector<float> grad_embedded_;
};

}  // namespace language_model
