#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo {

class Communicator;

/// One send or receive under way: move-only, awaitable in a Task.
///
/// Destroying it before it is ready gives the operation up, which only a run that failed for good
/// does. A receive is cancelled, or waited for where its message has begun to arrive, and its
/// buffer is free afterwards, unless the sender falls silent in the middle of the message: it is
/// waited for no longer than a tenth of a second. A send is abandoned, and its buffer must stay
/// alive until the process ends, since MPI may still read it.
class [[nodiscard]] Transfer {
 public:
  Transfer() = default;  ///< ready from the start
  Transfer(Communicator& communicator, std::uint64_t token)
      : communicator_(&communicator), token_(token) {}
  Transfer(Transfer&& other) noexcept;
  Transfer& operator=(Transfer&& other) noexcept;
  Transfer(const Transfer&) = delete;  // a transfer completes once
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  /// Looks without blocking. True once the buffer may be used again. Throws BackendError.
  bool ready();

 private:
  Communicator* communicator_ = nullptr;
  std::uint64_t token_ = 0;
};

/// Non-blocking collectives of the library below, for communicators that have one (MPI).
class NativeCollectives {
 public:
  virtual ~NativeCollectives() = default;

  /// MPI_Iallreduce of `count` elements, in place when `input == output`. Collective; the same
  /// order on all ranks. Throws InvalidArgument for what MPI cannot reduce (16-bit floats) and for
  /// more elements than an int counts.
  virtual Transfer all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                              ReduceOp op) = 0;
};

/// Point-to-point messages among the ranks 0 … size()-1 of a group, on host memory.
///
/// The seam to the outside world: algorithms and the coordinator know nothing else of the network.
/// Messages of one (sender, receiver, tag) arrive in the order they were sent. No call blocks.
/// Calls on one object may come from several threads, one at a time per object.
class Communicator {
 public:
  /// Longest message; algorithms cut larger buffers into segments.
  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;
  /// Tags are 0 … kTagCount-1 on every communicator.
  static constexpr int kTagCount = 256;

  /// A message that has arrived and waits to be received.
  struct Envelope {
    int source;
    std::size_t size_bytes;
  };

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts to send. `data` must stay as it is until the transfer is ready. A message to the own
  /// rank is allowed. Throws InvalidArgument for a rank, tag or size out of range.
  virtual Transfer send(std::span<const std::byte> data, int destination, int tag) = 0;

  /// Starts to receive. The message must have exactly `data.size()` bytes; another size makes
  /// `ready()` throw BackendError.
  virtual Transfer receive(std::span<std::byte> data, int source, int tag) = 0;

  /// The first message under `tag`, from whichever rank, that has arrived and is not received yet.
  virtual std::optional<Envelope> probe(int tag) = 0;

  /// Ranks from which and to which messages are still under way, each once.
  struct UnderWay {
    std::vector<int> from{};
    std::vector<int> to{};
  };
  /// Gives up all receives of this communicator, after a failure, and looks at its sends. Receives
  /// for which nothing has arrived are cancelled. A message that has begun to arrive cannot be
  /// stopped, and needs its sender to go on: all ranks call this again until both lists are empty
  /// of ranks that still live. Once `from` is empty no receive writes to its buffer any more.
  ///
  /// What was given up may be destroyed, but not be asked whether it is ready.
  virtual UnderWay give_up_receives() = 0;

  /// The collectives of the library below, or null.
  virtual NativeCollectives* native() { return nullptr; }

  /// Payload bytes given to `send` so far: what a bandwidth claim is checked against.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 protected:
  std::uint64_t bytes_sent_ = 0;

 private:
  friend class Transfer;
  virtual bool test(std::uint64_t token) = 0;
  virtual void abandon(std::uint64_t token) noexcept = 0;
};

}  // namespace kolo
