#include "runtime/control/window_board.hpp"

#include <memory>

#include <gtest/gtest.h>

#include "contract/ranks.hpp"
#include "kolo/error.hpp"

namespace kolo::runtime::window_board_test {

TEST(WindowBoardTest, AHeaderBeyondTheCellIsRefused) {
  test::run_on_ranks(1, WindowBoard::segment_bytes(), 1, [](const test::Rank& rank) {
    WindowBoard board(std::shared_ptr<SharedWindow>(std::shared_ptr<void>(), &rank.window));
    Header largest;
    largest.exchange = 1;
    largest.own.set(Header::kMaxBits - 1);
    largest.ready = largest.own;
    board.post(largest);
    EXPECT_EQ(board.merged(1), largest);

    Header beyond;
    beyond.exchange = 2;
    beyond.ready.set(Header::kMaxBits);
    EXPECT_THROW(board.post(beyond), BackendError);
    EXPECT_EQ(board.merged(2), std::nullopt);
  });
}

}  // namespace kolo::runtime::window_board_test
