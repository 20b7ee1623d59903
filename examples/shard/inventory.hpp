#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "shard/allocations.hpp"

namespace shard {

/// This rank's bytes, by what they hold.
struct Inventory {
  std::size_t parameters = 0;
  std::size_t gradients = 0;
  std::size_t state = 0;     ///< of the optimizer
  std::size_t gathered = 0;  ///< parameters of all ranks, in use
  std::size_t buckets = 0;   ///< buffers without any gradient
  std::size_t other = 0;     ///< all other tensors
};

/// The addresses of known data.
struct Places {
  std::vector<const void*> parameters;
  std::vector<const void*> gradients;
  std::vector<const void*> state;
  std::vector<const void*> gathered;
};

/// This rank's buffers, which are shared segments if ranks can share memory: bytes by address.
std::map<const std::byte*, std::size_t> own_buffers(const Allocations& allocations);

/// Classifies all allocations, and all buffers except those that existed `before`. Each counts as a
/// whole for what it holds, with its padding and anything else that is kept alive with it.
Inventory take_inventory(const Allocations& allocations,
                         const std::map<const std::byte*, std::size_t>& before,
                         const Places& places);

}  // namespace shard
