#pragma once

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
#include "runtime/control/tree_header_exchange.hpp"

namespace kolo::runtime::tree_header_exchange_test {

inline constexpr std::size_t kHeaderBytes = 100;
inline constexpr std::size_t kOtherBytes = 1;

/// The HeaderExchanges of one world. Messages between them have random delays, but keep their order
/// between two ranks.
class HeaderExchanges {
 public:
  HeaderExchanges(int size, int width, unsigned seed) : random_(seed) {
    for (int rank = 0; rank < size; ++rank) {
      exchanges_.push_back(std::make_unique<TreeHeaderExchange>(
          rank, size, Tree(rank, size, width),
          [this, rank](int to, const HeaderExchangeMessage& message) {
            return send(rank, to, message);
          }));
    }
  }

  int size() const { return static_cast<int>(exchanges_.size()); }
  TreeHeaderExchange& operator[](int rank) { return *exchanges_[static_cast<std::size_t>(rank)]; }
  unsigned draw(unsigned below) { return static_cast<unsigned>(random_() % below); }
  int draw_rank() { return static_cast<int>(draw(static_cast<unsigned>(size()))); }

  /// From now on `rank` reads nothing; its sent messages still arrive.
  void stop(int rank) { stopped_.insert(rank); }
  void resume(int rank) { stopped_.erase(rank); }
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
    HeaderExchangeMessage message;
  };

  std::size_t send(int from, int to, const HeaderExchangeMessage& message) {
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
  std::vector<std::unique_ptr<TreeHeaderExchange>> exchanges_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Delivery> under_way_;  // by time, then order
  std::map<std::pair<int, int>, std::uint64_t> last_arrival_;
  std::uint64_t now_ = 0;
  std::uint64_t sent_ = 0;
  std::set<int> stopped_;
  std::set<int> unreachable_;
  std::map<int, int> sends_left_;
};

inline constexpr unsigned kSeedsPerWorld = 5;

/// Runs `test` in worlds of `lowest` to 16 ranks, with every tree width and several seeds, which
/// failures name.
inline void in_all_worlds(int lowest, const std::function<void(HeaderExchanges&)>& test) {
  for (int size = lowest; size <= 16; ++size) {
    for (int width = 1; width <= 8; ++width) {
      for (unsigned seed = 0; seed < kSeedsPerWorld; ++seed) {
        SCOPED_TRACE("size " + std::to_string(size) + ", width " + std::to_string(width) +
                     ", seed " + std::to_string(seed));
        HeaderExchanges ranks(size, width, seed);
        test(ranks);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace kolo::runtime::tree_header_exchange_test
