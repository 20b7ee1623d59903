#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/dtype.hpp"
#include "kolo/handle.hpp"

namespace kolo {

class SharedWindow;

/// Memory of one size on every rank of a process set, which, where all ranks share a node, every
/// rank can reach: what lies in it is reduced in place, without any copy. Zero at first, aligned to
/// 64 bytes. Given back when its last copy and the last operation on it have ended.
///
/// Elsewhere, or where shared memory cannot be had, it is private memory, and operations on it move
/// its data by messages: slower, otherwise the same.
class SharedBuffer {
 public:
  /// Collective over the set and blocking, under `options.name`, or one from the order of calls;
  /// `size_bytes` must agree. Errors are those of collectives.
  explicit SharedBuffer(std::size_t size_bytes, const OperationOptions& options = {});

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  /// Whether other ranks reach it directly.
  bool is_shared() const { return !peers_.empty(); }
  /// What keeps the memory alive.
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  friend Handle allreduce_async(const SharedBuffer&, std::size_t, std::size_t, DType,
                                const AllreduceOptions&);

  std::string name_;
  std::size_t size_bytes_;
  std::byte* data_ = nullptr;
  std::vector<std::byte*> peers_;  // every rank's data, as seen from here; empty: private
  std::shared_ptr<void> owner_;
};

/// Combines `count` elements of `dtype` from `offset_bytes` on, in place on every rank. The same
/// place on all ranks. Other ranks write the result straight into this rank's memory.
Handle allreduce_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, const AllreduceOptions& options = {});

}  // namespace kolo
