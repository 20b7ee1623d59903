#pragma once

#include <chrono>
#include <memory>

namespace kolo {

namespace runtime {
class Lane;
struct Operation;
}  // namespace runtime

/// An operation under way, as the caller that started it holds it. Move-only.
///
/// The operation owns or keeps alive what it was given to own; memory passed as a TensorView must
/// stay valid until the handle is ready, and after a PeerLostError until the process ends, for MPI
/// may still read it (see kolo/collectives.hpp). Dropping a handle withdraws nothing: the operation
/// goes on and its error, if any, is lost. One thread at a time may use a handle.
class [[nodiscard]] Handle {
 public:
  Handle() = default;  ///< stands for nothing; waiting on it throws InvalidArgument
  Handle(std::shared_ptr<runtime::Lane> lane, std::shared_ptr<runtime::Operation> operation);
  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&&) noexcept = default;
  Handle(const Handle&) = delete;  // an operation has one owner who hears of its end
  Handle& operator=(const Handle&) = delete;
  ~Handle() = default;

  /// Looks without blocking. True once the operation ended, well or not; on a GPU, once it has been
  /// launched there.
  bool is_ready() const;

  /// Blocks until the operation has ended; meanwhile this thread moves the data of its process set,
  /// and sleeps when there is none to move. Rethrows the operation's error, each time it is called.
  /// On a GPU it blocks until the operation has been launched, and makes what is put on the
  /// operation's stream from then on wait for the result there: no thread waits for a GPU.
  void wait();

  /// The same for at most `duration`. False where the operation goes on.
  bool wait_for(std::chrono::nanoseconds duration);

  /// When its data began to move, and when the operation ended; once it is ready.
  std::chrono::steady_clock::time_point started() const;
  std::chrono::steady_clock::time_point ended() const;

 private:
  runtime::Operation& operation() const;

  std::shared_ptr<runtime::Lane> lane_;
  std::shared_ptr<runtime::Operation> operation_;
};

}  // namespace kolo
