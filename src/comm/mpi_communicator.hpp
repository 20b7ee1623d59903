#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <mpi.h>

#include "kolo/communicator.hpp"

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

/// MPI messages among some ranks of a communicator that all of Kolo shares. Tags, not MPI
/// communicators, separate process sets, so that creating one needs no communication.
class MpiCommunicator final : public Communicator {
 public:
  struct Options {
    MPI_Comm base = MPI_COMM_NULL;  ///< all ranks of the world; outlives this object
    std::vector<int> ranks;         ///< members, as ranks of `base`, ascending
    int channel = 0;                ///< the range of tags
  };

  /// Throws InvalidArgument if the channel's tags exceed MPI's upper bound.
  explicit MpiCommunicator(Options options);
  ~MpiCommunicator() override = default;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(options_.ranks.size()); }
  Transfer send(std::span<const std::byte> data, int destination, int tag) override;
  Transfer receive(std::span<std::byte> data, int source, int tag) override;
  std::optional<Envelope> probe(int tag) override;
  UnderWay give_up_receives() override;

 private:
  /// A request in flight. Free slots are reused, so that nothing is allocated in a steady state.
  struct Slot {
    MPI_Request request = MPI_REQUEST_NULL;
    int expected_bytes = kNotReceiving;
    int peer = 0;
    bool is_cancelled = false;

    bool is_receive() const { return expected_bytes != kNotReceiving; }
  };
  static constexpr int kNotReceiving = -1;

  bool test(std::uint64_t token) override;
  void abandon(std::uint64_t token) noexcept override;
  Transfer start(MPI_Request request, int expected_bytes, int peer);
  static void cancel(Slot& receive) noexcept;
  static bool has_ended(Slot& slot) noexcept;
  int mpi_tag(int tag) const { return options_.channel * kTagCount + tag; }
  int base_rank(int member) const { return options_.ranks[static_cast<std::size_t>(member)]; }

  Options options_;
  int rank_;
  // Includes requests of abandoned transfers, whose memory MPI may still use.
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> free_;
};

}  // namespace kolo::comm
