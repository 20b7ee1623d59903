#pragma once

#include <cstdint>
#include <optional>

#include "runtime/protocol/bits.hpp"

namespace kolo::runtime {

/// How a rank shuts down.
enum class Leaving : std::uint8_t {
  InOrder,
  ByException,  ///< one that leaves the scope of its Runtime
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

  /// Adds the header of another rank, or of a subtree, of the same exchange.
  void merge(const Header& other);

  bool operator==(const Header&) const = default;
};

}  // namespace kolo::runtime
