#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace kolo {

class Communicator;

/// A send or receive in progress. Move-only, awaitable in a Task.
///
/// Destroying it before it is ready abandons the message; only failed runs do so. A receive is
/// cancelled. If its message has begun to arrive, the destructor waits for it, up to a tenth of a
/// second; then the buffer is free, unless the sender has stopped responding. The buffer of a send
/// must stay alive until the process ends, since MPI may still read it.
class [[nodiscard]] Transfer {
 public:
  Transfer() = default;  ///< is ready
  Transfer(Communicator& communicator, std::uint64_t token)
      : communicator_(&communicator), token_(token) {}
  Transfer(Transfer&& other) noexcept;
  Transfer& operator=(Transfer&& other) noexcept;
  Transfer(const Transfer&) = delete;  // a transfer completes once
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  /// Tests without blocking.
  ///
  /// @return true once the buffer may be used again
  /// @throws BackendError if the transfer failed
  bool ready();

 private:
  Communicator* communicator_ = nullptr;
  std::uint64_t token_ = 0;
};

/// Point-to-point messages in host memory among the ranks 0 … size()-1 of a group. This interface
/// is the only way in which algorithms and the coordinator use the network.
///
/// Messages with the same sender, receiver and tag arrive in the order in which they were sent. No
/// call blocks. Calls may come from any thread, but from one at a time.
class Communicator {
 public:
  /// Longest message; algorithms send larger buffers in segments.
  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;
  /// Tags are 0 … kTagCount-1 on every communicator.
  static constexpr int kTagCount = 256;

  /// A message that has arrived and has not been received.
  struct Envelope {
    int source;
    std::size_t size_bytes;
  };

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts a send, possibly to this rank itself.
  ///
  /// @param data must not change until the transfer is ready
  /// @throws InvalidArgument for a rank, tag or size out of range
  virtual Transfer send(std::span<const std::byte> data, int destination, int tag) = 0;

  /// Starts a receive of a message of exactly `data.size()` bytes. If the message has another size,
  /// Transfer::ready throws BackendError.
  virtual Transfer receive(std::span<std::byte> data, int source, int tag) = 0;

  /// @return the first message of `tag`, from any rank, that has arrived and has not been received
  virtual std::optional<Envelope> probe(int tag) = 0;

  /// The ranks from which and to which messages are still in progress, without duplicates.
  struct UnderWay {
    std::vector<int> from{};
    std::vector<int> to{};
  };
  /// Cancels all receives after a failure, and tests the sends.
  ///
  /// A message that has begun to arrive cannot be cancelled, and needs its sender to make progress:
  /// call this on all ranks until both lists contain only dead ranks. Once `from` is empty, no
  /// receive writes to its buffer any more. Cancelled transfers may be destroyed but not tested.
  virtual UnderWay give_up_receives() = 0;

  /// For traces, after a test that found a transfer unfinished: whom it waits for.
  ///
  /// @return a rank; -1: unknown
  virtual int awaited() const { return awaited_; }

  /// @return payload bytes passed to `send` so far
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 protected:
  std::uint64_t bytes_sent_ = 0;
  int awaited_ = -1;

 private:
  friend class Transfer;
  virtual bool test(std::uint64_t token) = 0;
  virtual void abandon(std::uint64_t token) noexcept = 0;
};

}  // namespace kolo
#pragma GCC visibility pop
