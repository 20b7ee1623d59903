// One rank of a header exchange by messages receives calls of its own and messages from others, of
// any content that decodes and in any order. Beyond "no crash":
//   - a header that is not due is rejected with BackendError, and nothing else throws;
//   - messages go only to other ranks of the set, and headers only along the tree;
//   - a merged header holds at least what this rank posted, for the requested exchange.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fuzz/fuzz_target.hpp"
#include "kolo/error.hpp"
#include "runtime/control/tree_header_exchange.hpp"

namespace kolo::fuzz {
namespace {

using runtime::Header;
using runtime::HeaderDown;
using runtime::HeaderExchangeMessage;
using runtime::HeaderUp;
using runtime::Heartbeat;
using runtime::Left;
using runtime::LostRank;
using runtime::Ping;
using runtime::Tree;
using runtime::TreeHeaderExchange;
using runtime::WakeUpRequest;

constexpr int kMaxRanks = 9;

class FuzzedExchange {
 public:
  explicit FuzzedExchange(ByteSource& source)
      : source_(source),
        size_(1 + source.take_below(kMaxRanks)),
        rank_(source.take_below(size_)),
        tree_(rank_, size_, 1 + source.take_below(4)),
        header_exchange_(rank_, size_, tree_, [this](int to, const HeaderExchangeMessage& message) {
          return check_sent(to, message);
        }) {}

  void step() {
    switch (source_.take_below(8)) {
      case 0: post(); break;
      case 1: header_exchange_.request_wake_up(source_.take<std::uint8_t>()); break;
      case 2: header_exchange_.publish_lost({source_.take_below(size_), "died"}); break;
      case 3: header_exchange_.leave(); break;
      case 4:
        for (const int rank : header_exchange_.silent_ranks()) require_other(rank);
        break;
      default: receive();
    }
    read();
  }

 private:
  /// As the interface requires: after the previous exchange has been read.
  void post() {
    if (posted_ > 0 && !header_exchange_.merged(posted_)) return;
    own_ = take_header(++posted_);
    header_exchange_.post(own_);
  }

  void read() {
    if (const auto merged = header_exchange_.merged(posted_); merged && posted_ > 0) {
      require(merged->exchange == posted_, "the header is of the requested exchange");
      // The parent may send anything.
      if (!tree_.parent) require(merged->own.contains(own_.own), "own bits are shown");
    }
    header_exchange_.highest_wake_up_request();
    header_exchange_.lost();
    for (int rank = 0; rank < size_; ++rank) header_exchange_.has_left(rank);
  }

  void receive() {
    const int from = source_.take_below(size_);
    if (from == rank_) return;
    try {
      header_exchange_.on_message(from, take_message());
    } catch (const BackendError&) {
    }
  }

  HeaderExchangeMessage take_message() {
    switch (source_.take_below(7)) {
      case 0: return HeaderUp{take_header(source_.take<std::uint8_t>())};
      case 1: return HeaderDown{take_header(source_.take<std::uint8_t>())};
      case 2: return WakeUpRequest{source_.take<std::uint64_t>()};
      case 3: return LostRank{source_.take<std::uint8_t>(), "hangs"};
      case 4: return Left{};
      case 5: return Ping{};
      default: return Heartbeat{};
    }
  }

  Header take_header(std::uint64_t exchange) {
    Header header;
    header.exchange = exchange;
    header.shutdown_rank = source_.take<std::int8_t>();
    header.own.set_word(0, source_.take<std::uint8_t>());
    header.ready.set(source_.take<std::uint8_t>());
    return header;
  }

  std::size_t check_sent(int to, const HeaderExchangeMessage& message) {
    require_other(to);
    const bool is_child = std::count(tree_.children.begin(), tree_.children.end(), to) == 1;
    if (std::holds_alternative<HeaderUp>(message)) require(to == tree_.parent, "up to the parent");
    if (std::holds_alternative<HeaderDown>(message)) require(is_child, "down to a child");
    if (source_.take_below(16) == 0 && may_fail_to_send(message)) throw BackendError("unreachable");
    return 1;
  }
  static bool may_fail_to_send(const HeaderExchangeMessage& message) {
    return std::holds_alternative<LostRank>(message) || std::holds_alternative<Left>(message) ||
           std::holds_alternative<Ping>(message) || std::holds_alternative<Heartbeat>(message);
  }

  void require_other(int rank) const {
    require(rank >= 0 && rank < size_ && rank != rank_, "another rank of the set");
  }

  ByteSource& source_;
  const int size_;
  const int rank_;
  const Tree tree_;
  Header own_;
  std::uint64_t posted_ = 0;
  TreeHeaderExchange header_exchange_;
};

}  // namespace

std::vector<std::string> seeds() {
  return {std::string("\1\0\1\0\0\1\1\5\1\0\1\0\1\1", 14),
          std::string("\2\0\1\0\0\1\1\5\1\0\1", 11),
          std::string("\3\1\1\0\0\1\1\5\0\1\1\0\1\1\5\2\0\1\0\1\1", 21), std::string(60, '\5')};
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kolo::fuzz::ByteSource source(data, size);
  kolo::fuzz::FuzzedExchange exchange(source);
  while (!source.is_empty()) exchange.step();
  return 0;
}
