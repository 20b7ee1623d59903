#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "kolo/shared_buffer.hpp"
#include "torch/tensors/program_stream.hpp"

namespace kolo::tensors {

/// Memory for gathered units: a fixed number of equal slots, and additional ones while an operator
/// needs more units. The ranks of a node may share the fixed slots; additional ones belong to one
/// rank.
class UnitSlots {
 public:
  struct Slot {
    std::shared_ptr<c10::DataPtr> memory;  ///< a gather may outlive the slots
    std::optional<std::size_t> unit{};
    std::vector<ProgramStream> streams;  ///< of the last gather, then those of operators since

    std::byte* data() const { return static_cast<std::byte*>(memory->get()); }
    /// An operator on the stream uses the slot, after its gather and before its next one.
    void use_on(const ProgramStream& stream);
    /// Makes the current stream wait for all uses so far.
    void await_uses() const;
  };

  /// `of_node`, if any, has room for `count` slots, in the same order on all ranks of the node.
  UnitSlots(std::size_t count, std::size_t slot_bytes, const c10::Device& device,
            std::optional<SharedBuffer> of_node = std::nullopt);

  const c10::Device& device() const { return device_; }
  std::size_t size() const { return slots_.size(); }
  Slot& operator[](std::size_t slot) { return slots_[slot]; }
  auto begin() const { return slots_.begin(); }
  auto end() const { return slots_.end(); }

  /// Whether the ranks of a node share the slot.
  bool is_of_node(std::size_t slot) const { return of_node_ && slot < count_; }
  bool is_added(std::size_t slot) const { return slot >= count_; }
  /// Returns the new slot, the last one.
  std::size_t add();
  /// Removes an added slot; the last one gets its number.
  void remove(std::size_t slot);

  /// Bytes of the fixed slots, and of the additional ones.
  std::size_t permanent_bytes() const { return count_ * slot_bytes_; }
  std::size_t added_bytes() const { return (slots_.size() - count_) * slot_bytes_; }

 private:
  std::shared_ptr<c10::DataPtr> make_memory() const;

  std::size_t count_;
  std::size_t slot_bytes_;
  c10::Device device_;
  std::optional<SharedBuffer> of_node_;
  std::vector<Slot> slots_;
};

}  // namespace kolo::tensors
