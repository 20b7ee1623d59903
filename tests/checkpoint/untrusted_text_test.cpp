#include "checkpoint/untrusted_text.hpp"

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/signed_index.hpp"
#include "kolo/error.hpp"

namespace kolo::checkpoints::untrusted_text_test {

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ParseJsonTest, DuplicateKey_IsRefusedAtEveryLevel) {
  EXPECT_EQ(parse_json(R"({"a":{"a":1},"b":{"a":2}})").at("b").at("a"), 2);
  EXPECT_THROW(parse_json(R"({"a":1,"b":2,"a":1})"), InvalidArgument);
  EXPECT_THROW(parse_json(R"({"a":[{"b":1,"b":2}]})"), InvalidArgument);
}

TEST(ParseJsonTest, Nesting_IsBounded) {
  EXPECT_EQ(parse_json(nested(100)).size(), 1u);
  EXPECT_THROW(parse_json(nested(102)), InvalidArgument);
}

/// Printing or copying such a value would overflow the stack.
TEST(ParseJsonTest, DeeplyNestedIndex_IsRefused) {
  const std::string deep = nested(200'000);
  const auto error_of = [](const std::string& rest) -> std::string {
    try {
      parse_index(test::signed_text("\n" + rest, "kolo checkpoint", 1));
      return "accepted";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  EXPECT_NE(error_of(R"("files":[],"tensors":{},"details":)" + deep + "}").find("more than 100"),
            std::string::npos);
  EXPECT_NE(error_of(R"("files":[{"name":"x","bytes":)" + deep + "}]}").find("more than 100"),
            std::string::npos);
}

}  // namespace kolo::checkpoints::untrusted_text_test
