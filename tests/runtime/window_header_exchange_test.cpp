#include "runtime/control/window_header_exchange.hpp"

#include <memory>

#include <gtest/gtest.h>

#include "contract/ranks.hpp"
#include "kolo/error.hpp"

namespace kolo::runtime::window_header_exchange_test {

TEST(WindowHeaderExchangeTest, AHeaderBeyondTheCellIsRefused) {
  test::run_on_ranks(1, WindowHeaderExchange::segment_bytes(), 1, [](const test::Rank& rank) {
    WindowHeaderExchange header_exchange(
        std::shared_ptr<SharedWindow>(std::shared_ptr<void>(), &rank.window));
    Header largest;
    largest.exchange = 1;
    largest.own.set(Header::kMaxBits - 1);
    largest.ready = largest.own;
    header_exchange.post(largest);
    EXPECT_EQ(header_exchange.merged(1), largest);

    Header beyond;
    beyond.exchange = 2;
    beyond.ready.set(Header::kMaxBits);
    EXPECT_THROW(header_exchange.post(beyond), BackendError);
    EXPECT_EQ(header_exchange.merged(2), std::nullopt);
  });
}

}  // namespace kolo::runtime::window_header_exchange_test
