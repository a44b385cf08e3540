/// \file
/// Expectations about Error.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "shardloss/error.hpp"

namespace shardloss::test {

/// Runs `action`, which must throw Error(code) whose text holds all of `parts`.
template <class Action>
void expect_error(ErrorCode code, std::initializer_list<std::string_view> parts,
                  const Action& action) {
  try {
    action();
    ADD_FAILURE() << "no error, wanted " << name(code);
  } catch (const Error& error) {
    EXPECT_EQ(name(error.code()), name(code)) << error.what();
    for (const std::string_view part : parts)
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
          << "\"" << part << "\" is not in: " << error.what();
  }
}

}  // namespace shardloss::test
