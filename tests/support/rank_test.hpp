/// \file
/// The fixture of tests that compute: a group of all ranks on the device under test.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "call.hpp"
#include "expect_error.hpp"
#include "sample.hpp"
#include "world.hpp"

namespace shardloss::test {

class RankTest : public testing::Test {
 protected:
  void SetUp() override {
    SHARDLOSS_NEEDS_DEVICE();
    group_.emplace(group());
  }

  const Communicator& communicator() const { return *group_; }
  static bool on_gpu() { return device().kind == DeviceKind::cuda; }

  /// One rank's tensors of a sample.
  static Tensors place(const Sample& sample, const Style& style = {}) {
    return Tensors(sample, rank(), ranks(), device(), style);
  }
  Loss make(const Sample& sample) const { return Loss(sample.problem, communicator(), device()); }

  /// Runs the sample and compares all it gives with the reference.
  void expect_reference(const Sample& sample, Way way, const Style& style = {}) const {
    EXPECT_EQ(check(sample, communicator(), way, style), "")
        << (way == Way::fused ? "fused " : "two_step ") << describe_options(sample);
  }

  /// The same, and both ways.
  void expect_reference(const Sample& sample, const Style& style = {}) const {
    expect_reference(sample, Way::fused, style);
    expect_reference(sample, Way::two_step, style);
  }

 private:
  std::optional<Communicator> group_;
};

/// The whole answer of a call.
inline Answer answer_of(const Sample& sample, const Communicator& communicator,
                        Way way = Way::fused, const Style& style = {}) {
  const Loss loss(sample.problem, communicator, device());
  const Tensors tensors(sample, rank(), ranks(), device(), style);
  run(loss, tensors, way);
  return whole(sample, tensors.answer(), ranks());
}

/// Values against closed forms.
inline void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                        double within, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], within) << what << "[" << i << "]";
}

}  // namespace shardloss::test
