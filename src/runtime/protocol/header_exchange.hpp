#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kolo/error.hpp"
#include "runtime/protocol/bits.hpp"

namespace kolo::runtime {

/// How a rank shuts down.
enum class Leaving : std::uint8_t {
  InOrder,
  ByException,  ///< one that leaves the scope of its Runtime
};

/// The newest submission that an exchange may have waited for. `at` in nanoseconds on the clock of
/// world rank 0's host.
struct Newest {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();

  std::int64_t at = kNever;
  int rank = -1;  ///< -1: none

  auto operator<=>(const Newest&) const = default;
};

/// The message of one rank, or of several ranks merged, in one exchange. Merging is associative and
/// commutative, so headers reduce over a tree in any order.
struct Header {
  static constexpr int kMaxBits = 8192;  ///< the most that a header can show and a table can hold

  std::uint64_t exchange = 0;
  bool has_unknown = false;          ///< NEW: some rank has an unknown request pending
  bool has_expired = false;          ///< EXPIRED: some rank has a request whose deadline passed
  bool has_stalled = false;          ///< STALLED: some rank asks which ranks it waits for
  std::optional<int> shutdown_rank;  ///< SHUTDOWN: the highest rank that shuts down
  std::optional<int> thrower_rank;   ///< the highest that does so because of an exception
  Bits joined;                       ///< JOINED: the ranks that have joined
  Bits own;                          ///< pending on some rank, known and not expired
  Bits ready;                        ///< runnable by every rank: pending there, or it has joined
  Newest newest{};                   ///< for traces alone: nothing is decided by it

  /// Adds the header of another rank, or of a subtree, of the same exchange.
  void merge(const Header& other);

  bool operator==(const Header&) const = default;
};

/// A tree over the ranks with rank 0 as root, in which a rank has at most `width` children. The
/// children of rank r are width·r + 1 … width·r + width. A star if width ≥ size - 1.
struct Tree {
  std::optional<int> parent;  ///< none: this rank is the root
  std::vector<int> children;

  Tree(int rank, int size, int width) {
    if (rank > 0) parent = (rank - 1) / width;
    for (int child = width * rank + 1; child <= width * rank + width && child < size; ++child) {
      children.push_back(child);
    }
  }
};

struct LostRank {
  int rank = 0;
  std::string how;  ///< completes "rank 3 ", as in "died: its process has ended"
  /// Of the errors to which it leads: the ranks of a set that is matched by order may also end it
  /// for what one of them did.
  ErrorKind kind = ErrorKind::PeerLost;
  bool operator==(const LostRank&) const = default;
};

/// Exchanges headers, wake-up requests and losses between the ranks of a process set.
/// Ranks count within the set. No call blocks.
class HeaderExchange {
 public:
  virtual ~HeaderExchange() = default;

  /// Shows this rank's header of `header.exchange`: once per exchange, in ascending order, and only
  /// after `merged` has returned the headers of the previous exchange.
  virtual void post(const Header& header) = 0;
  /// The headers of all ranks for `exchange`, merged; none until all have arrived here. This rank
  /// must have posted its own.
  virtual std::optional<Header> merged(std::uint64_t exchange) = 0;

  /// For traces: a rank that has not posted its header of this rank's exchange, or has not shown
  /// `bit` in it, which this rank has; -1: not known.
  virtual int awaited(std::optional<int> /*bit*/) { return -1; }

  /// Asks every rank to post its header of `exchange`.
  virtual void request_wake_up(std::uint64_t exchange) = 0;
  /// The highest exchange that any rank has requested; 0: none.
  virtual std::uint64_t highest_wake_up_request() = 0;

  /// Tells all ranks that a rank is lost, possibly this one itself. Only the first call counts.
  virtual void publish_lost(const LostRank& lost) = 0;
  /// The first loss known here.
  virtual std::optional<LostRank> lost() = 0;

  /// This rank has closed the set in an orderly way: its end is not a loss.
  virtual void leave() = 0;
  virtual bool has_left(int rank) = 0;
  /// This rank has ended. Ranks that share no memory do not hear of it.
  virtual void end() {}
  virtual bool has_ended(int) { return false; }

  /// Bytes of headers that this rank has shown or sent so far.
  virtual std::uint64_t bytes_shown() const = 0;

  /// A sign of life of this rank's coordinator; call it at least every 50 ms.
  virtual void beat() = 0;
  /// The ranks that were silent since the previous call and have not left. Leave
  /// much more than 50 ms between calls.
  virtual std::vector<int> silent_ranks() = 0;
};

}  // namespace kolo::runtime
