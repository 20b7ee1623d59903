#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kolo/algorithm.hpp"

/// Memory that an operation writes may not overlap anything else that it uses: algorithms read
/// inputs after they have written parts of outputs, and differently on different ranks.
namespace kolo::runtime {

/// The memory of one tensor on this rank.
struct UsedMemory {
  std::span<const std::byte> input;
  std::span<const std::byte> output;
  std::span<const std::byte> residual{};
  /// The input, or the part of the input, that the output may be; all-gather: the part of the
  /// output that the input may be. Null: none.
  const std::byte* in_place = nullptr;
};

/// Why an operation cannot use this memory; empty: it can. Tensors of a group may share inputs.
std::string overlap_in(Collective collective, std::span<const UsedMemory> tensors);

}  // namespace kolo::runtime
