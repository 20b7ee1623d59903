#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "shard/allocations.hpp"

namespace shard {

/// Bytes of this rank, by what they hold.
struct Inventory {
  std::size_t parameters = 0;
  std::size_t gradients = 0;
  std::size_t state = 0;     ///< of the optimizer
  std::size_t gathered = 0;  ///< parameters of all ranks, in use
  std::size_t buckets = 0;   ///< buffers without any gradient
  std::size_t other = 0;     ///< tensors that are none of these
};

/// Where what we know lies.
struct Places {
  std::vector<const void*> parameters;
  std::vector<const void*> gradients;
  std::vector<const void*> state;
  std::vector<const void*> gathered;
};

/// This rank's buffers, which are shared segments where ranks can share memory: bytes by address.
std::map<const std::byte*, std::size_t> own_buffers(const Allocations& allocations);

/// Of all allocations, and of all buffers but those that were there `before`. Each counts whole for
/// what lies in it: so padding does, and whatever else is kept alive with it.
Inventory take_inventory(const Allocations& allocations,
                         const std::map<const std::byte*, std::size_t>& before,
                         const Places& places);

}  // namespace shard
