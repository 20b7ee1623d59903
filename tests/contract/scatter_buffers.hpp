#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "contract/guarded_buffer.hpp"
#include "contract/reduce_case.hpp"
#include "kolo/algorithm.hpp"

namespace kolo::test {

/// A reduce-scatter: a reduction of `reduce.count` elements, and the count of each rank.
struct ScatterCase {
  ReduceCase reduce;
  std::vector<std::size_t> counts;
};

/// One rank's memory for a reduce-scatter.
class ScatterBuffers {
 public:
  ScatterBuffers(const ScatterCase& item, int rank)
      : case_(item),
        rank_(static_cast<std::size_t>(rank)),
        own_{place_of(item, rank)},
        original_(reduce_input(item.reduce, rank)),
        input_(original_.size(), shift()),
        output_(own_.length, shift()) {}

  std::byte* input() { return input_.data(); }

  /// Also fills in the input, right before the call.
  CollectiveCall call() {
    input_.fill(original_);
    const ReduceCase& reduce = case_.reduce;
    return {.input = input_.data(),
            .output = reduce.in_place ? input_.data() + own_.begin : output_.data(),
            .dtype = reduce.dtype,
            .reduction = reduce.reduction,
            .counts = case_.counts,
            .segment_bytes = reduce.segment_bytes};
  }

  void give_up() {
    input_.give_up();
    output_.give_up();
  }

  std::span<const std::byte> result() const {
    if (!case_.reduce.in_place) return output_.bytes();
    return input_.bytes().subspan(own_.begin, own_.length);
  }

  /// Checks that nothing but this rank's result was written.
  void expect_guards_intact() const {
    const ReduceCase& item = case_.reduce;
    EXPECT_TRUE(output_.is_guard_intact()) << item << ": rank " << rank_ << " wrote beside output";
    EXPECT_TRUE(input_.is_guard_intact()) << item << ": rank " << rank_ << " wrote beside input";
    const std::size_t end = item.in_place ? own_.begin : original_.size();
    EXPECT_TRUE(is_kept(0, end) && (!item.in_place || is_kept(end + own_.length, original_.size())))
        << item << ": the input of rank " << rank_ << " has changed";
  }

 private:
  struct Place {
    std::size_t begin;
    std::size_t length;
  };

  /// In bytes.
  static Place place_of(const ScatterCase& item, int rank) {
    const auto own = item.counts.begin() + rank;
    const std::size_t element = size_of(item.reduce.dtype);
    return {std::accumulate(item.counts.begin(), own, std::size_t{0}) * element, *own * element};
  }
  std::size_t shift() const { return case_.reduce.offset * size_of(case_.reduce.dtype); }
  bool is_kept(std::size_t begin, std::size_t end) const {
    const auto from = static_cast<std::ptrdiff_t>(begin);
    return std::equal(original_.begin() + from,
                      original_.begin() + static_cast<std::ptrdiff_t>(end),
                      input_.bytes().begin() + from);
  }

  ScatterCase case_;
  std::size_t rank_;
  Place own_;
  std::vector<std::byte> original_;
  GuardedBuffer input_;
  GuardedBuffer output_;
};

}  // namespace kolo::test
