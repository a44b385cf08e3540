// The printed names of the public enumerations.
#include <string>

#include "shardloss/error.hpp"
#include "shardloss/problem.hpp"
#include "shardloss/tensor.hpp"

namespace shardloss {

std::string_view name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::invalid_target: return "invalid_target";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::device: return "device";
    case ErrorCode::peer: return "peer";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

std::string_view name(DType dtype) noexcept {
  switch (dtype) {
    case DType::float64: return "float64";
    case DType::float32: return "float32";
    case DType::bfloat16: return "bfloat16";
    case DType::float16: return "float16";
    case DType::int64: return "int64";
    case DType::int32: return "int32";
    case DType::uint8: return "uint8";
  }
  return "unknown";
}

std::string_view name(DeviceKind kind) noexcept { return kind == DeviceKind::cpu ? "cpu" : "cuda"; }

std::string_view name(Layout layout) noexcept {
  return layout == Layout::replicated ? "replicated" : "row_sharded";
}

std::string_view name(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::none: return "none";
    case Reduction::sum: return "sum";
    case Reduction::mean: return "mean";
  }
  return "unknown";
}

std::string_view name(Accumulation accumulation) noexcept {
  switch (accumulation) {
    case Accumulation::automatic: return "automatic";
    case Accumulation::accurate: return "accurate";
    case Accumulation::balanced: return "balanced";
    case Accumulation::compact: return "compact";
  }
  return "unknown";
}

std::string_view name(SmoothingForm form) noexcept {
  return form == SmoothingForm::pytorch ? "pytorch" : "megatron";
}

std::string_view name(GradDType dtype) noexcept {
  switch (dtype) {
    case GradDType::none: return "none";
    case GradDType::same: return "same";
    case GradDType::float32: return "float32";
  }
  return "unknown";
}

std::string_view name(Chunking::Rule rule) noexcept {
  switch (rule) {
    case Chunking::Rule::automatic: return "automatic";
    case Chunking::Rule::rows: return "rows";
    case Chunking::Rule::workspace_limit: return "workspace_limit";
    case Chunking::Rule::aspect_ratio: return "aspect_ratio";
  }
  return "unknown";
}

std::string to_string(const ConstTensor& tensor) {
  if (!tensor.given()) return "not given";
  std::string text(name(tensor.dtype()));
  const auto list = [&](auto value) {
    std::string out = "[";
    for (int dim = 0; dim < tensor.dims(); ++dim) {
      out += (dim == 0 ? "" : ", ") + std::to_string(value(dim));
    }
    return out + "]";
  };
  text += " " + list([&](int dim) { return tensor.size(dim); });
  text += " strides " + list([&](int dim) { return tensor.stride(dim); });
  text += " on " + std::string(name(tensor.device().kind));
  if (tensor.device().kind == DeviceKind::cuda) text += ":" + std::to_string(tensor.device().index);
  return text;
}

}  // namespace shardloss
