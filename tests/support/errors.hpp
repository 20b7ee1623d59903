#pragma once

#include <exception>
#include <string>

#include <gtest/gtest.h>

namespace kolo::test {

/// The text of the `Expected` that `call` throws; if it does not, a test failure and an empty text.
template <class Expected, class Call>
std::string text_thrown_by(Call&& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception was thrown: " << error.what();
  }
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

}  // namespace kolo::test
