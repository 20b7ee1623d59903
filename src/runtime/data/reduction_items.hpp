#pragma once

#include <cstddef>
#include <span>

#include "runtime/data/operation.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// One tensor to be reduced.
struct ReductionItem {
  const TensorType* type;
  TensorMemory* memory;
};

/// Ranks that have joined and contribute the identity.
struct JoinedRanks {
  int count = 0;
  bool is_here = false;  ///< this rank is one of them
};

/// @return the divisor of an average over a process set of `size` ranks
inline int divisor_of(const Request& request, JoinedRanks joined, int size) {
  return request.join_divisor == JoinDivisor::Active ? size - joined.count : size;
}

/// @return how many of `items` are fused: the first and those that follow it, as long as they have
///         its dtype and at most `limit_bytes` in total
inline std::size_t fused_run(std::span<const ReductionItem> items, std::size_t limit_bytes) {
  std::size_t length = 1;
  std::size_t bytes = items[0].type->size_bytes();
  while (length < items.size() && items[length].type->dtype == items[0].type->dtype &&
         bytes + items[length].type->size_bytes() <= limit_bytes) {
    bytes += items[length++].type->size_bytes();
  }
  return length;
}

}  // namespace kolo::runtime
