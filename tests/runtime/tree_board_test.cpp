#include "runtime/control/tree_board.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"

namespace kolo::runtime::tree_board_test {

using Loss = HeaderBoard::Loss;

constexpr std::size_t kHeaderBytes = 100;
constexpr std::size_t kOtherBytes = 1;
constexpr unsigned kSeedsPerWorld = 5;

/// Boards of one world, with messages between them that take random time and keep their order
/// between two ranks.
class Boards {
 public:
  Boards(int size, int width, unsigned seed) : random_(seed) {
    for (int rank = 0; rank < size; ++rank) {
      boards_.push_back(std::make_unique<TreeBoard>(
          rank, size, Tree(rank, size, width),
          [this, rank](int to, const BoardMessage& message) { return send(rank, to, message); }));
    }
  }

  int size() const { return static_cast<int>(boards_.size()); }
  TreeBoard& operator[](int rank) { return *boards_[static_cast<std::size_t>(rank)]; }
  unsigned draw(unsigned below) { return static_cast<unsigned>(random_() % below); }

  /// From now on `rank` reads nothing; what it sends still arrives.
  void stop(int rank) { stopped_.insert(rank); }
  void go_on(int rank) { stopped_.erase(rank); }
  /// From now on `rank` sends nothing either.
  void kill(int rank) { kill_after(rank, 0); }
  void kill_after(int rank, int sends) {
    stop(rank);
    sends_left_[rank] = sends;
  }
  /// Sends to `rank` fail from now on.
  void cut_off(int rank) { unreachable_.insert(rank); }

  /// Delivers the next message; false if there is none.
  bool deliver() {
    if (under_way_.empty()) return false;
    const auto first = under_way_.begin();
    const Delivery delivery = std::move(first->second);
    now_ = first->first.first;
    under_way_.erase(first);
    if (!stopped_.contains(delivery.to)) {
      (*this)[delivery.to].on_message(delivery.from, delivery.message);
    }
    return true;
  }
  void deliver_all() {
    while (deliver()) {
    }
  }

  std::uint64_t sent() const { return sent_; }

 private:
  struct Delivery {
    int from;
    int to;
    BoardMessage message;
  };

  std::size_t send(int from, int to, const BoardMessage& message) {
    if (from == to || to < 0 || to >= size()) ADD_FAILURE() << from << " sends to " << to;
    if (unreachable_.contains(to)) throw BackendError("unreachable");
    const auto left = sends_left_.find(from);
    if (left != sends_left_.end() && left->second-- <= 0) return 0;
    const std::uint64_t delay = draw(8) == 0 ? draw(1000) : draw(10);
    std::uint64_t& last = last_arrival_[{from, to}];
    last = std::max(last, now_ + delay);
    under_way_.emplace(std::pair(last, sent_++), Delivery{from, to, message});
    const bool is_header =
        std::holds_alternative<HeaderUp>(message) || std::holds_alternative<HeaderDown>(message);
    return is_header ? kHeaderBytes : kOtherBytes;
  }

  std::mt19937 random_;
  std::vector<std::unique_ptr<TreeBoard>> boards_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Delivery> under_way_;  // by time, then order
  std::map<std::pair<int, int>, std::uint64_t> last_arrival_;
  std::uint64_t now_ = 0;
  std::uint64_t sent_ = 0;
  std::set<int> stopped_;
  std::set<int> unreachable_;
  std::map<int, int> sends_left_;
};

/// Differs per rank and exchange in every field.
Header header_of(int rank, std::uint64_t exchange) {
  std::minstd_rand random(static_cast<unsigned>(exchange * 64) + static_cast<unsigned>(rank) + 1);
  random.discard(2);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  Header header;
  header.exchange = exchange;
  header.has_unknown = one_in(20);
  header.has_expired = one_in(20);
  header.has_stalled = one_in(20);
  if (one_in(10)) header.joined.set(rank);
  if (one_in(10)) header.shutdown_rank = rank;
  for (int bit = 0; bit < 200; bit += 9) {
    if (one_in(10)) header.own.set(bit);
    if (!one_in(10)) header.ready.set(bit);
  }
  return header;
}

Header serial_merge(int size, std::uint64_t exchange) {
  Header merged = header_of(0, exchange);
  for (int rank = 1; rank < size; ++rank) merged.merge(header_of(rank, exchange));
  return merged;
}

/// Runs `test` in worlds of `lowest` to 16 ranks, with every width and several seeds, which it
/// names.
void in_all_worlds(int lowest, const std::function<void(Boards&)>& test) {
  for (int size = lowest; size <= 16; ++size) {
    for (int width = 1; width <= 8; ++width) {
      for (unsigned seed = 0; seed < kSeedsPerWorld; ++seed) {
        SCOPED_TRACE("size " + std::to_string(size) + ", width " + std::to_string(width) +
                     ", seed " + std::to_string(seed));
        Boards boards(size, width, seed);
        test(boards);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(TreeBoardTest, Exchanges_MergeEveryHeaderOnEveryRank) {
  constexpr std::uint64_t kExchanges = 12;
  in_all_worlds(1, [](Boards& boards) {
    // Every rank posts and looks whenever it is its turn, so that some run ahead of others.
    std::vector<std::uint64_t> posted(static_cast<std::size_t>(boards.size()));
    std::vector<std::uint64_t> read(posted);
    const auto take_turn = [&](int rank) {
      std::uint64_t& mine = posted[static_cast<std::size_t>(rank)];
      std::uint64_t& seen = read[static_cast<std::size_t>(rank)];
      if (mine == seen && mine < kExchanges) boards[rank].post(header_of(rank, ++mine));
      if (mine == seen) return;
      const std::optional<Header> merged = boards[rank].merged(mine);
      if (!merged) return;
      EXPECT_EQ(*merged, serial_merge(boards.size(), mine)) << "rank " << rank;
      EXPECT_GE(*std::min_element(posted.begin(), posted.end()), mine) << "before all had posted";
      seen = mine;
    };
    const auto is_finished = [&] {
      return std::all_of(read.begin(), read.end(), [&](auto e) { return e == kExchanges; });
    };
    for (int turns = 0; turns < 100'000 && !is_finished(); ++turns) {
      if (boards.draw(2) == 0 || !boards.deliver()) {
        take_turn(static_cast<int>(boards.draw(static_cast<unsigned>(boards.size()))));
      }
    }
    EXPECT_TRUE(is_finished()) << "some rank waits for ever";
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < boards.size(); ++rank) bytes += boards[rank].bytes_shown();
    EXPECT_EQ(bytes, kExchanges * 2 * static_cast<unsigned>(boards.size() - 1) * kHeaderBytes);
  });
}

TEST(TreeBoardTest, Merged_AnswersForTheLastExchangeOnly) {
  Boards boards(1, 2, 0);
  EXPECT_FALSE(boards[0].merged(1));
  boards[0].post(header_of(0, 1));
  EXPECT_EQ(boards[0].merged(1), header_of(0, 1));
  EXPECT_EQ(boards[0].merged(1), header_of(0, 1));
  EXPECT_FALSE(boards[0].merged(2));
  boards[0].post(header_of(0, 2));
  EXPECT_EQ(boards[0].merged(2), header_of(0, 2));
}

TEST(TreeBoardTest, Asks_ReachAllAndAreForwardedOnce) {
  in_all_worlds(1, [](Boards& boards) {
    const auto asker = static_cast<int>(boards.draw(static_cast<unsigned>(boards.size())));
    boards[asker].ask(5);
    EXPECT_EQ(boards[asker].highest_ask(), 5u);
    boards.deliver_all();
    EXPECT_EQ(boards.sent(), static_cast<unsigned>(boards.size() - 1));
    for (int rank = 0; rank < boards.size(); ++rank) {
      EXPECT_EQ(boards[rank].highest_ask(), 5u) << "rank " << rank;
      boards[rank].ask(5);  // news to nobody
      boards[rank].ask(4);
    }
    EXPECT_EQ(boards.sent(), static_cast<unsigned>(boards.size() - 1));
  });
}

TEST(TreeBoardTest, AsksOfAllAtOnce_EndAtTheHighestEverywhere) {
  in_all_worlds(1, [](Boards& boards) {
    std::uint64_t highest = 0;
    for (int rank = 0; rank < boards.size(); ++rank) {
      const std::uint64_t exchange = 1 + boards.draw(9);
      highest = std::max(highest, exchange);
      boards[rank].ask(exchange);
      if (boards.draw(2) == 0) boards.deliver();
    }
    boards.deliver_all();
    for (int rank = 0; rank < boards.size(); ++rank) {
      EXPECT_EQ(boards[rank].highest_ask(), highest) << "rank " << rank;
    }
  });
}

TEST(TreeBoardTest, Loss_ReachesAllAroundADeadRank) {
  in_all_worlds(2, [](Boards& boards) {
    const auto size = static_cast<unsigned>(boards.size());
    const auto dead = static_cast<int>(boards.draw(size));
    const auto reporter =
        static_cast<int>((static_cast<unsigned>(dead) + 1 + boards.draw(size - 1)) % size);
    boards.kill(dead);
    const Loss loss{dead, "died: its process has ended"};
    EXPECT_FALSE(boards[reporter].lost());
    boards[reporter].publish_lost(loss);
    boards.deliver_all();
    for (int rank = 0; rank < boards.size(); ++rank) {
      if (rank == dead) continue;
      EXPECT_EQ(boards[rank].lost(), loss) << "rank " << rank << ", reported by " << reporter;
    }
    const std::uint64_t sent = boards.sent();
    boards[reporter].publish_lost({reporter, "is another loss"});
    EXPECT_EQ(boards[reporter].lost(), loss);
    EXPECT_EQ(boards.sent(), sent) << "the first loss stays";
  });
}

TEST(TreeBoardTest, LossOfAnUnreachableRank_IsToldToTheOthers) {
  Boards boards(5, 2, 1);
  boards.kill(1);
  boards.cut_off(1);
  boards[2].publish_lost({1, "died"});
  boards.deliver_all();
  for (const int rank : {0, 2, 3, 4}) EXPECT_EQ(boards[rank].lost(), Loss(1, "died"));
}

TEST(TreeBoardTest, LossByAReporterThatDiesMeanwhile_StillReachesAll) {
  in_all_worlds(3, [](Boards& boards) {
    const int reporter =
        boards.size() - 1;  // a leaf, so that the tree of the others holds together
    const Loss loss{reporter, "ended with an exception"};
    boards.kill_after(reporter, 1);
    boards[reporter].publish_lost(loss);
    boards.deliver_all();
    for (int rank = 0; rank < reporter; ++rank) {
      EXPECT_EQ(boards[rank].lost(), loss) << "rank " << rank;
    }
  });
}

TEST(TreeBoardTest, Leaves_ReachAllThoughOthersHaveLeftBefore) {
  in_all_worlds(1, [](Boards& boards) {
    std::vector<int> order;
    for (int rank = 0; rank < boards.size(); ++rank) order.push_back(rank);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[boards.draw(static_cast<unsigned>(i))]);
    }
    for (const int rank : order) {
      EXPECT_FALSE(boards[rank].has_left(rank));
      boards[rank].leave();
      boards.deliver_all();
      boards.stop(rank);
      for (std::size_t i = 0; i < order.size(); ++i) {
        const bool is_past = std::find(order.begin(), order.end(), rank) - order.begin() >=
                             static_cast<std::ptrdiff_t>(i);
        EXPECT_EQ(boards[order.back()].has_left(order[i]), is_past) << order[i] << " at " << rank;
      }
    }
    EXPECT_FALSE(boards[order.front()].lost());
  });
}

TEST(TreeBoardTest, SilentRanks_AreThoseWhichReadNoMessages) {
  in_all_worlds(2, [](Boards& boards) {
    std::vector<int> at_work;
    std::vector<int> stopped;
    for (int rank = 0; rank < boards.size(); ++rank) {
      (boards.draw(4) == 0 ? stopped : at_work).push_back(rank);
    }
    for (const int rank : stopped) boards.stop(rank);
    const auto expect_silent = [&](const std::vector<int>& expected, const char* when) {
      for (const int rank : at_work) {
        EXPECT_EQ(boards[rank].silent_ranks(), expected) << "at " << rank << " " << when;
      }
      boards.deliver_all();
    };
    expect_silent({}, "before anybody was asked");
    expect_silent(stopped, "after they had time to answer");
    expect_silent(stopped, "still");
    for (const int rank : stopped) boards.go_on(rank);
    expect_silent(stopped, "until they were asked again");
    expect_silent({}, "once they go on");
  });
}

TEST(TreeBoardTest, UnreachableRank_IsSilent) {
  Boards boards(3, 2, 0);
  boards.cut_off(1);
  boards[0].silent_ranks();
  boards.deliver_all();
  EXPECT_EQ(boards[0].silent_ranks(), std::vector<int>{1});
}

TEST(TreeBoardTest, RankThatHasLeft_IsNotSilent) {
  Boards boards(3, 2, 0);
  boards[2].leave();
  boards.deliver_all();
  boards.stop(2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(boards[0].silent_ranks(), std::vector<int>{});
    boards.deliver_all();
  }
}

std::string rejection_of(TreeBoard& board, int from, const BoardMessage& message) {
  try {
    board.on_message(from, message);
  } catch (const BackendError& error) {
    return error.what();
  }
  return "";
}

TEST(TreeBoardTest, HeaderOutOfTurn_IsRejectedByName) {
  Boards boards(7, 2, 0);  // rank 1: parent 0, children 3 and 4
  TreeBoard& board = boards[1];
  EXPECT_NE(rejection_of(board, 5, HeaderUp{header_of(5, 1)}).find("no child"), std::string::npos);
  EXPECT_NE(rejection_of(board, 3, HeaderUp{header_of(3, 2)}).find("expected 1"),
            std::string::npos);
  EXPECT_EQ(rejection_of(board, 3, HeaderUp{header_of(3, 1)}), "");
  const std::string twice = rejection_of(board, 3, HeaderUp{header_of(3, 1)});
  EXPECT_NE(twice.find("rank 1 of the process set"), std::string::npos) << twice;
  EXPECT_NE(twice.find("exchange 1 from rank 3"), std::string::npos) << twice;
  EXPECT_NE(rejection_of(board, 3, HeaderDown{header_of(3, 1)}).find("not the parent"),
            std::string::npos);
  EXPECT_NE(rejection_of(board, 0, HeaderDown{header_of(0, 1)}), "") << "nothing posted";
  board.post(header_of(1, 1));
  EXPECT_NE(rejection_of(board, 0, HeaderDown{header_of(0, 1)}), "") << "child 4 is missing";
  EXPECT_EQ(rejection_of(board, 4, HeaderUp{header_of(4, 1)}), "");
  EXPECT_NE(rejection_of(board, 0, HeaderDown{header_of(0, 2)}), "") << "another exchange";
  EXPECT_EQ(rejection_of(board, 0, HeaderDown{header_of(0, 1)}), "");
  EXPECT_NE(rejection_of(board, 0, HeaderDown{header_of(0, 1)}), "") << "twice";
  EXPECT_EQ(board.merged(1), header_of(0, 1));
}

TEST(TreeBoardTest, ChildAheadOfItsParent_IsKeptForTheNextExchange) {
  Boards boards(2, 1, 0);
  boards[0].post(header_of(0, 1));
  boards[1].post(header_of(1, 1));
  boards.deliver_all();
  ASSERT_TRUE(boards[1].merged(1));
  boards[1].post(header_of(1, 2));
  boards.deliver_all();
  EXPECT_EQ(boards[0].merged(1), serial_merge(2, 1)) << "not read before";
  boards[0].post(header_of(0, 2));
  EXPECT_EQ(boards[0].merged(2), serial_merge(2, 2));
}

}  // namespace kolo::runtime::tree_board_test
