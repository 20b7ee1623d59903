#pragma once

#include <utility>

#include <mpi.h>

namespace kolo::comm {

/// Owns one MPI object, or refers to one that somebody else owns: move-only. MPI's handles are
/// pointers in one library and integers in another, so a unique_ptr will not do. Freed quietly, and
/// not at all once MPI has been finalised, when all handles are void.
template <class Handle, int (*free_handle)(Handle*)>
class MpiOwner {
 public:
  /// Takes over `handle`; `null` is MPI's null of its kind.
  static MpiOwner owning(Handle handle, Handle null) { return {handle, null, true}; }
  /// Refers to `handle` and never frees it.
  static MpiOwner viewing(Handle handle, Handle null) { return {handle, null, false}; }

  MpiOwner(MpiOwner&& other) noexcept
      : handle_(std::exchange(other.handle_, other.null_)),
        null_(other.null_),
        owns_(other.owns_) {}
  MpiOwner& operator=(MpiOwner&& other) noexcept {
    MpiOwner moved(std::move(other));
    std::swap(handle_, moved.handle_);
    std::swap(null_, moved.null_);
    std::swap(owns_, moved.owns_);
    return *this;
  }
  MpiOwner(const MpiOwner&) = delete;  // an object is freed once
  MpiOwner& operator=(const MpiOwner&) = delete;
  ~MpiOwner() {
    int is_finalized = 0;
    if (!owns_ || handle_ == null_ || MPI_Finalized(&is_finalized) != MPI_SUCCESS) return;
    if (is_finalized == 0) free_handle(&handle_);
  }

  Handle get() const { return handle_; }
  /// Gives the object up without freeing it.
  Handle release() { return std::exchange(handle_, null_); }

 private:
  MpiOwner(Handle handle, Handle null, bool owns) : handle_(handle), null_(null), owns_(owns) {}

  Handle handle_;
  Handle null_;
  bool owns_;
};

using MpiComm = MpiOwner<MPI_Comm, MPI_Comm_free>;

}  // namespace kolo::comm
