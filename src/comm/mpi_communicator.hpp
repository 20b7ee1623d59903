#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/mpi_library.hpp"
#include "kolo/communicator.hpp"

namespace kolo::comm {

/// Owns an MPI communicator. The destructor ignores errors, and frees nothing once MPI has been
/// finalized, when all handles are invalid.
class MpiComm {
 public:
  explicit MpiComm(MpiHandle handle) : handle_(handle) {}
  MpiComm(MpiComm&& other) noexcept : handle_(other.release()) {}
  MpiComm& operator=(MpiComm&&) = delete;
  ~MpiComm() {
    int is_finalized = 0;
    if (handle_ == MpiHandle() || mpi().finalized.code(&is_finalized) != 0) return;
    if (is_finalized == 0) mpi().comm_free.code(&handle_);
  }

  MpiHandle get() const { return handle_; }
  /// Gives up ownership without freeing the communicator.
  MpiHandle release() { return std::exchange(handle_, {}); }

 private:
  MpiHandle handle_;
};

/// MPI messages among some ranks of a communicator that all of Kolo shares. Tags, not MPI
/// communicators, separate process sets, so that creating one needs no communication.
class MpiCommunicator final : public Communicator {
 public:
  struct Options {
    MpiHandle base;          ///< all ranks of the world; outlives this object
    std::vector<int> ranks;  ///< members, as ranks of `base`, ascending
    int channel = 0;         ///< the range of tags
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
    MpiHandle request;
    int expected_bytes = kNotReceiving;
    int peer = 0;
    bool is_cancelled = false;

    bool is_receive() const { return expected_bytes != kNotReceiving; }
  };
  static constexpr int kNotReceiving = -1;

  bool test(std::uint64_t token) override;
  void abandon(std::uint64_t token) noexcept override;
  Transfer start(MpiHandle request, int expected_bytes, int peer);
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
