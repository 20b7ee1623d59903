#pragma once

// One reduction of the contract: inputs in closed form, guarded memory, and the expected result.

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/guarded_buffer.hpp"
#include "contract/reference.hpp"
#include "kolo/algorithm.hpp"

namespace kolo::test {

/// The kind of input of a reduction.
enum class Values {
  Mixed,       ///< different for every rank and element
  Large,       ///< near the largest 16-bit float: the sum of two overflows
  NotANumber,  ///< mixed, with one NaN on each rank
};

struct ReduceCase {
  DType dtype = DType::Float32;
  Reduction reduction{};
  std::size_t count = 0;
  std::size_t segment_bytes = 64;
  bool in_place = false;
  std::size_t offset = 0;  ///< elements between an aligned address and the buffers
  Values values = Values::Mixed;
};

inline std::ostream& operator<<(std::ostream& out, const ReduceCase& item) {
  return out << name_of(item.reduction.op) << " of " << item.count << " " << name_of(item.dtype)
             << ", scales " << item.reduction.prescale << " and " << item.reduction.postscale
             << ", segments of " << item.segment_bytes << " bytes, offset " << item.offset
             << (item.in_place ? ", in place" : "");
}

/// Element `index` of `rank`'s input. The magnitudes of floats differ so much that each order of
/// summation gives different bits; products stay within the range of float16.
double reduce_value(const ReduceCase& item, int rank, std::size_t index);
std::vector<std::byte> reduce_input(const ReduceCase& item, int rank);

/// One rank's memory for an all-reduce.
class ReduceBuffers {
 public:
  ReduceBuffers(const ReduceCase& item, int rank)
      : case_(item),
        original_(reduce_input(item, rank)),
        input_(original_.size(), item.offset * size_of(item.dtype)),
        output_(original_.size(), item.offset * size_of(item.dtype)) {
    input_.fill(original_);
  }

  /// If the call is in place, fills in the input right before it.
  void fill() {
    if (case_.in_place) output_.fill(original_);
  }

  std::byte* output() { return output_.data(); }

  CollectiveCall call() {
    return {.input = case_.in_place ? output_.data() : input_.data(),
            .output = output_.data(),
            .count = case_.count,
            .dtype = case_.dtype,
            .reduction = case_.reduction,
            .segment_bytes = case_.segment_bytes};
  }

  void give_up() {
    input_.give_up();
    output_.give_up();
  }

  std::vector<std::byte> result() const {
    const std::span<const std::byte> bytes = output_.bytes();
    return {bytes.begin(), bytes.end()};
  }

  /// Checks that nothing but the output was written.
  void expect_guards_intact() const {
    EXPECT_TRUE(output_.is_guard_intact()) << case_ << ": written beside the output";
    EXPECT_TRUE(input_.is_guard_intact()) << case_ << ": written beside the input";
    EXPECT_TRUE(input_.holds(original_)) << case_ << ": the input has changed";
  }

 private:
  ReduceCase case_;
  std::vector<std::byte> original_;
  GuardedBuffer input_;
  GuardedBuffer output_;
};

/// The tolerance of element `index`, for each part of a complex number, if the order of summation
/// is not fixed.
double tolerance_at(const ReduceCase& item, int size, std::size_t index);

/// Compares all elements with the rank-ordered sum, bit by bit if the algorithm guarantees that.
void expect_reduced(const ReduceCase& item, const std::vector<std::byte>& result, int size,
                    bool rank_ordered);

}  // namespace kolo::test
