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

namespace kolo {

/// Memory of one size on every rank of a process set, which, where all ranks share a node, every
/// rank can reach: collectives on what lies in it read and write it there, without any copy in
/// between. Zero at first, aligned to 64 bytes. Given back when its last copy and the last
/// operation on it have ended.
///
/// Elsewhere, or where shared memory cannot be had, it is private memory, and operations on it move
/// its data by messages: slower, otherwise the same. Memory of a GPU is private, too.
class SharedBuffer {
 public:
  /// Collective over the set and blocking, under `options.name`, or one from the order of calls;
  /// `size_bytes` must agree. Errors are those of collectives.
  explicit SharedBuffer(std::size_t size_bytes, const OperationOptions& options = {});
  /// Private memory that is there already, on a GPU for one: the bytes of `memory`, as long as
  /// `owner` lives. A local call. All ranks give theirs of one size under the same name, each
  /// buffer its own.
  SharedBuffer(std::string name, const TensorView& memory, std::shared_ptr<void> owner);

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  Device device() const { return device_; }
  /// The name under which it was made, the same on all ranks.
  const std::string& name() const { return name_; }
  /// What tells it from all others, which may have its name; the same on all ranks, for error
  /// texts.
  const std::string& identity() const { return identity_; }
  /// Whether other ranks reach it directly.
  bool is_shared() const { return !peers_.empty(); }
  /// Where it lies on every rank of `set`, seen from here; empty where it is private memory, and
  /// for another set than the one it was made in. Throws InvalidArgument where this rank is no
  /// member.
  std::vector<std::byte*> peers(const ProcessSet& set) const;
  /// What keeps the memory alive.
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::string name_;
  std::string identity_;
  std::size_t size_bytes_;
  std::byte* data_ = nullptr;
  Device device_{};
  std::vector<std::byte*> peers_;      // every rank's data, as seen from here; empty: private
  std::weak_ptr<runtime::Lane> lane_;  // of the set it was made in
  std::shared_ptr<void> owner_;
};

// Collectives on elements that lie in shared buffers, from `offset_bytes` on, a multiple of the
// size of an element: in the same buffer and at the same place on all ranks, or all of them get a
// MismatchError that names both. Other ranks read this memory, and in an all-reduce write it,
// until the handle is ready. What does not fit into a buffer, or overlaps where it may not, is an
// InvalidArgument on all ranks. Everything else is as in kolo/collectives.hpp; with ranks that have
// joined, and on a process set other than the buffer's, data moves as that of private memory does.

/// Combines `count` elements of `dtype`, in place on every rank.
Handle allreduce_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, const AllreduceOptions& options = {});
void allreduce(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               const AllreduceOptions& options = {});

/// Combines elements of `shape` [rows, ...] of `output`'s dtype, and puts this rank's rows of the
/// result into `output` [scattered_rows(rows), ...]. That may be memory of any kind, so that the
/// buffer is free for the next input at once, or this rank's rows in the buffer, but no other part
/// of what is read. The buffer stays as it is otherwise.
Handle reduce_scatter_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                            const std::vector<std::int64_t>& shape, const TensorView& output,
                            const AllreduceOptions& options = {});
void reduce_scatter(const SharedBuffer& buffer, std::size_t offset_bytes,
                    const std::vector<std::int64_t>& shape, const TensorView& output,
                    const AllreduceOptions& options = {});

/// Gathers in place: counts[r] elements that lie at their place on rank r, those of all ranks one
/// after another, come to the same places on all others. The counts must agree. A rank that has
/// joined gives zeros.
Handle allgather_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                       const std::vector<std::int64_t>& counts, DType dtype,
                       const OperationOptions& options = {});
void allgather(const SharedBuffer& buffer, std::size_t offset_bytes,
               const std::vector<std::int64_t>& counts, DType dtype,
               const OperationOptions& options = {});

/// Copies `count` elements of rank `root`, a world rank, to the same place on all others.
Handle broadcast_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, int root, const OperationOptions& options = {});
void broadcast(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               int root, const OperationOptions& options = {});

/// Sends `count` elements to every rank: of the blocks that lie one after another in `input`, the
/// r-th goes to rank r, and the block from rank r becomes the r-th in `output`. The two may be the
/// same buffer, at places that do not overlap.
Handle alltoall_async(const SharedBuffer& input, std::size_t input_offset_bytes,
                      const SharedBuffer& output, std::size_t output_offset_bytes,
                      std::size_t count, DType dtype, const OperationOptions& options = {});
void alltoall(const SharedBuffer& input, std::size_t input_offset_bytes, const SharedBuffer& output,
              std::size_t output_offset_bytes, std::size_t count, DType dtype,
              const OperationOptions& options = {});

/// The same with rows of `shape` [rows, ...], as many to each rank as `splits` says, and memory of
/// any kind for what comes, but none that overlaps the input: see alltoall_async of private memory.
Handle alltoall_async(const SharedBuffer& input, std::size_t offset_bytes,
                      const std::vector<std::int64_t>& shape, DType dtype,
                      std::vector<std::int64_t> splits, AllocateRows allocate,
                      const OperationOptions& options = {});
void alltoall(const SharedBuffer& input, std::size_t offset_bytes,
              const std::vector<std::int64_t>& shape, DType dtype, std::vector<std::int64_t> splits,
              AllocateRows allocate, const OperationOptions& options = {});

}  // namespace kolo
