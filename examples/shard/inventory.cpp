#include "shard/inventory.hpp"

#include <algorithm>
#include <functional>

#include "shard/process_memory.hpp"

namespace shard {
namespace {

bool holds_any(const std::byte* begin, std::size_t size_bytes,
               const std::vector<const void*>& places) {
  return std::ranges::any_of(places, [&](const void* place) {
    return !std::less<>()(place, begin) && std::less<>()(place, begin + size_bytes);
  });
}

}  // namespace

std::map<const std::byte*, std::size_t> own_buffers(const Allocations& allocations) {
  std::map<const std::byte*, std::size_t> buffers = own_segments();
  buffers.merge(allocations.buffers());
  return buffers;
}

Inventory take_inventory(const Allocations& allocations,
                         const std::map<const std::byte*, std::size_t>& before,
                         const Places& places) {
  Inventory inventory;
  const auto add = [&](const std::byte* begin, std::size_t size_bytes, std::size_t& otherwise) {
    const auto holds = [&](const std::vector<const void*>& known) {
      return holds_any(begin, size_bytes, known);
    };
    (holds(places.parameters)  ? inventory.parameters
     : holds(places.gradients) ? inventory.gradients
     : holds(places.state)     ? inventory.state
     : holds(places.gathered)  ? inventory.gathered
                               : otherwise) += size_bytes;
  };
  for (const auto& [begin, size] : allocations.blocks()) add(begin, size, inventory.other);
  for (const auto& [begin, size] : own_buffers(allocations)) {
    if (!before.contains(begin)) add(begin, size, inventory.buckets);
  }
  return inventory;
}

}  // namespace shard
