/// \file
/// The one exception of the library.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "shardloss/export.hpp"

namespace shardloss {

/// What went wrong. `fatal_code` tells which of them end the communicator.
enum class ErrorCode : std::uint8_t {
  invalid_argument,  ///< an argument of this rank does not fit; the text says which, and both
                     ///< values
  mismatch,          ///< the ranks disagree; the text names the field, the values and the ranks
  invalid_target,    ///< a target outside [0, vocab) that is not ignore_index; names row and value
  out_of_memory,     ///< an allocation at construction failed on some rank
  device,            ///< CUDA, cuBLAS or another local device failure
  peer,              ///< another rank failed or left
  timeout,           ///< a peer did not arrive within the communicator's deadline
  internal,          ///< a broken promise of this library
};

/// The name of a code, as it appears in messages: "invalid_argument", ...
SHARDLOSS_API std::string_view name(ErrorCode code) noexcept;

/// Thrown by everything in this library, and nothing else is.
///
/// After a fatal error the communicator is *failed*: every later call on it throws the first error
/// again and talks to nobody. After any other error it is as good as before, on every rank.
class SHARDLOSS_API Error : public std::runtime_error {
 public:
  /// `fatal`: whether the communicator is lost with it.
  Error(ErrorCode code, const std::string& text, bool fatal = false)
      : std::runtime_error(std::string(name(code)) + ": " + text), code_(code), fatal_(fatal) {}

  /// What went wrong.
  ErrorCode code() const noexcept { return code_; }

  /// True when the communicator on which this happened can no longer be used.
  bool fatal() const noexcept { return fatal_; }

 private:
  ErrorCode code_;
  bool fatal_;
};

}  // namespace shardloss
