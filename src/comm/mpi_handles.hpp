#pragma once

#include <utility>

#include <mpi.h>

namespace kolo::comm {

/// Owns one MPI object, or refers to one that it does not own: move-only. Not a unique_ptr, since
/// handles are pointers in one MPI and integers in another. The destructor ignores errors, and
/// frees nothing once MPI has been finalized, when all handles are invalid.
template <class Handle, int (*free_handle)(Handle*)>
class MpiOwner {
 public:
  /// Takes ownership of `handle`; `null` is MPI's null handle of that kind.
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
  /// Gives up ownership without freeing the object.
  Handle release() { return std::exchange(handle_, null_); }

 private:
  MpiOwner(Handle handle, Handle null, bool owns) : handle_(handle), null_(null), owns_(owns) {}

  Handle handle_;
  Handle null_;
  bool owns_;
};

using MpiComm = MpiOwner<MPI_Comm, MPI_Comm_free>;

}  // namespace kolo::comm
