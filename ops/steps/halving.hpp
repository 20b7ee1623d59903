#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// The ranks that take part in halving: a power of two of them, the cores. If there are more ranks,
/// the first ones form pairs of neighbours; the odd rank of a pair is folded onto the even one, its
/// host, which represents both.
///
///   n = 7       ranks    0 + 1   2 + 3   4 + 5   6
///               cores      0       1       2     3
class Cores {
 public:
  Cores(int rank, int size);

  int count() const { return count_; }
  /// This rank's number among the cores; that of its host if it is folded.
  int own() const { return own_; }
  int rank_of(int core) const { return core < pairs_ ? 2 * core : core + pairs_; }
  bool is_paired() const { return own_ < pairs_; }
  bool is_folded() const { return is_folded_; }
  /// The other rank of the pair.
  int partner() const { return rank_of(own_) + (is_folded_ ? 0 : 1); }

 private:
  int count_;
  int pairs_;
  int own_;
  bool is_folded_;
};

/// Sends `outgoing` to `peer` and receives `incoming` from it, segment by segment. Either may be
/// empty.
Task exchange(CollectiveCall call, int peer, std::span<const std::byte> outgoing,
              std::span<std::byte> incoming);

/// Reduction by recursive halving: at every step a core sends one half of its blocks to a peer and
/// combines the other half with the peer's.
///
///   4 cores           0          1          2          3
///   distance 2     [01..]     [01..]     [..23]     [..23]      combined with core c xor 2
///   distance 1     [0...]     [.1..]     [..2.]     [...3]      core c holds the sum of block c
///
/// Partial results are in `work`, which is as long as the input and indexed like it. 16-bit floats
/// are rounded at every step. The prescale is applied before the first step and the postscale with
/// the last.
class Halving {
 public:
  /// blocks[c] belongs to core c; blocks are consecutive. `call` must live as long as this object.
  Halving(const CollectiveCall& call, const Cores& cores, std::byte* work,
          std::vector<Range> blocks);

  /// Leaves the sum of this core's block in `work`, and nothing on a folded rank. Not for a single
  /// rank.
  Task reduce();

 private:
  Range blocks(int first, int count) const;
  Range all() const { return blocks(0, cores_.count()); }
  Task combine_with(int peer, Range given, Range kept, double postscale);

  const CollectiveCall& call_;
  const Cores& cores_;
  const std::byte* source_;  // the input, then `work_`
  std::byte* work_;
  std::vector<Range> blocks_;
  std::size_t slot_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace kolo::ops
