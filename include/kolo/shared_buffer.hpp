#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/dtype.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/tensor_view.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Memory of equal size on every rank of a process set, on which collectives run without copies.
///
///     kolo::SharedBuffer buffer(count * sizeof(float));
///     kolo::allreduce(buffer, 0, count, kolo::DType::Float32);
///
/// If all ranks are on one node, every rank can access all of these buffers. Otherwise, or if the
/// system provides no shared memory, a buffer is private memory: slower, but with the same results.
/// GPU memory is always private. Buffers are initialised to zeros, aligned to 64 bytes, and
/// released after the last copy of the object and the last operation on it.
class SharedBuffer {
 public:
  /// Allocates the buffer. Collective over the set and blocking.
  ///
  /// @param size_bytes the same on all ranks
  /// @param options see OperationOptions
  /// @throws the errors of collectives
  explicit SharedBuffer(std::size_t size_bytes, const OperationOptions& options = {});
  /// Wraps existing private memory, for example on a GPU. A local call.
  ///
  /// @param name unique among buffers, the same on all ranks
  /// @param memory of equal size on all ranks
  /// @param owner keeps the memory alive; without one, operations on a GPU copy it
  SharedBuffer(std::string name, const TensorView& memory, std::shared_ptr<void> owner);

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  Device device() const { return device_; }
  /// @return the name of the operation that allocated it, the same on all ranks
  const std::string& name() const { return name_; }
  /// @return a string unique to this buffer, unlike its name; the same on all ranks
  const std::string& identity() const { return identity_; }
  /// @return true if other ranks can access it
  bool is_shared() const { return !peers_.empty(); }
  /// @param set the set that the buffer was allocated for
  /// @return addresses of all ranks' buffers in this process; empty for private memory, and for
  ///         another set
  /// @throws InvalidArgument if this rank is not a member
  std::vector<std::byte*> peers(const ProcessSet& set) const;
  /// @return the object that keeps the memory alive
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::string name_;
  std::string identity_;
  std::size_t size_bytes_;
  std::byte* data_ = nullptr;
  Device device_{};
  std::vector<std::byte*> peers_;          // every rank's data, as seen from here; empty: private
  std::weak_ptr<runtime::Engine> engine_;  // of the set it was made in
  std::shared_ptr<void> owner_;
};

// Collectives on elements in shared buffers. Elements begin at `offset_bytes`, a multiple of their
// size, in the same buffer and at the same offset on all ranks; otherwise all ranks throw
// MismatchError. Other ranks read this memory, and all-reduces write it, until the handle is ready.
// Elements outside a buffer and forbidden overlaps cause InvalidArgument on all ranks. Everything
// else is as in kolo/collectives.hpp. If ranks have joined, or on a process set other than the
// buffer's, the buffer is treated as private memory.

/// Reduces `count` elements of `dtype` in place, on every rank.
Handle allreduce_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, const AllreduceOptions& options = {});
void allreduce(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               const AllreduceOptions& options = {});

/// Reduces elements of the buffer and scatters the rows of the result. Does not change the buffer,
/// unless `output` is in it.
///
/// @param shape [rows, ...] of the input in the buffer
/// @param output receives [scattered_rows(rows), ...] in its dtype; memory that does not overlap
///        the input, or exactly this rank's rows of it
Handle reduce_scatter_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                            const std::vector<std::int64_t>& shape, const TensorView& output,
                            const AllreduceOptions& options = {});
void reduce_scatter(const SharedBuffer& buffer, std::size_t offset_bytes,
                    const std::vector<std::int64_t>& shape, const TensorView& output,
                    const AllreduceOptions& options = {});

/// Gathers in place. A rank that has joined contributes zeros.
///
/// @param counts elements of each rank, stored one after another, the same on all ranks; each rank
///   writes its own before the call
Handle allgather_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                       const std::vector<std::int64_t>& counts, DType dtype,
                       const OperationOptions& options = {});
void allgather(const SharedBuffer& buffer, std::size_t offset_bytes,
               const std::vector<std::int64_t>& counts, DType dtype,
               const OperationOptions& options = {});

/// Copies `count` elements from world rank `root` to the same offset on all others.
Handle broadcast_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, int root, const OperationOptions& options = {});
void broadcast(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               int root, const OperationOptions& options = {});

/// Sends a block of `count` elements to every rank.
///
/// @param input blocks one after another; block r goes to rank r
/// @param output receives the block of rank r as its block r; may be the same buffer if the two do
///        not overlap
Handle alltoall_async(const SharedBuffer& input, std::size_t input_offset_bytes,
                      const SharedBuffer& output, std::size_t output_offset_bytes,
                      std::size_t count, DType dtype, const OperationOptions& options = {});
void alltoall(const SharedBuffer& input, std::size_t input_offset_bytes, const SharedBuffer& output,
              std::size_t output_offset_bytes, std::size_t count, DType dtype,
              const OperationOptions& options = {});

/// Sends rows to every rank, like alltoall_async on private memory.
///
/// @param shape [rows, ...] of the input in the buffer
/// @param allocate returns memory that does not overlap the input
Handle alltoall_async(const SharedBuffer& input, std::size_t offset_bytes,
                      const std::vector<std::int64_t>& shape, DType dtype,
                      std::vector<std::int64_t> splits, AllocateRows allocate,
                      const OperationOptions& options = {});
void alltoall(const SharedBuffer& input, std::size_t offset_bytes,
              const std::vector<std::int64_t>& shape, DType dtype, std::vector<std::int64_t> splits,
              AllocateRows allocate, const OperationOptions& options = {});

}  // namespace kolo
#pragma GCC visibility pop
