#include "torch/sharding/unit_slots.hpp"

#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>

namespace kolo::tensors {

void UnitSlots::Slot::use_on(const ProgramStream& stream) {
  if (std::ranges::find(streams, stream) != streams.end()) return;
  streams.front().order_before_current();
  stream.keep(*memory);
  streams.push_back(stream);
}

void UnitSlots::Slot::await_uses() const {
  for (const ProgramStream& stream : streams) stream.order_before_current();
}

UnitSlots::UnitSlots(std::size_t count, std::size_t slot_bytes, const c10::Device& device,
                     std::optional<SharedBuffer> of_node)
    : count_(count), slot_bytes_(slot_bytes), device_(device), of_node_(std::move(of_node)) {
  while (slots_.size() < count_) add();
}

std::size_t UnitSlots::add() {
  slots_.push_back({.memory = make_memory(), .streams = {ProgramStream::current(device_)}});
  return slots_.size() - 1;
}

void UnitSlots::remove(std::size_t slot) {
  std::swap(slots_[slot], slots_.back());
  slots_.pop_back();
}

/// The memory of the next slot.
std::shared_ptr<c10::DataPtr> UnitSlots::make_memory() const {
  if (!is_of_node(slots_.size())) {
    const c10::DeviceGuard guard(device_);  // LibTorch's allocators use the thread's current device
    return std::make_shared<c10::DataPtr>(c10::GetAllocator(device_.type())->allocate(slot_bytes_));
  }
  const auto owned = std::make_shared<std::pair<c10::DataPtr, std::shared_ptr<void>>>(
      c10::DataPtr(of_node_->data() + slots_.size() * slot_bytes_, device_), of_node_->owner());
  return {owned, &owned->first};
}

}  // namespace kolo::tensors
