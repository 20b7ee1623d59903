#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace kolo::runtime {
class Engine;
struct Operation;
}  // namespace kolo::runtime

#pragma GCC visibility push(default)
namespace kolo {

/// The caller's handle to an asynchronous operation. Move-only.
///
/// Memory that was passed as a TensorView must stay valid until the handle is ready, and after a
/// PeerLostError until the process ends (see kolo/collectives.hpp). Destroying a handle cancels
/// nothing: the operation continues, and its error is lost. One thread at a time may use a handle.
class [[nodiscard]] Handle {
 public:
  Handle() = default;  ///< without an operation; waiting on it throws InvalidArgument
  Handle(std::shared_ptr<runtime::Engine> engine, std::shared_ptr<runtime::Operation> operation);
  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&&) noexcept = default;
  Handle(const Handle&) = delete;  // one owner receives the result
  Handle& operator=(const Handle&) = delete;
  ~Handle() = default;

  /// Tests without blocking, and makes a little progress if the operation has not ended.
  ///
  /// @return true once the operation has ended, successfully or not; on a GPU, once it has been
  ///         launched
  bool is_ready() const;

  /// Blocks until the operation has ended. Meanwhile the calling thread makes progress for the
  /// process set, and sleeps when there is nothing to do.
  ///
  /// On a GPU, blocks until the operation has been launched; work put on the operation's stream
  /// afterwards runs after the operation. No thread waits for a GPU.
  ///
  /// @throws the operation's error, at every call
  void wait();
  /// The same; on a GPU, work put on `stream` (null: the default stream) afterwards runs after the
  /// operation, instead of that on the operation's stream: memory that an allocator gives back to
  /// the latter must outlive the operation, see OperationOptions::keep_alive.
  ///
  /// @throws InvalidArgument while `stream` is captured
  void wait(void* stream);

  /// Waits for at most `duration`.
  ///
  /// @return false if the operation has not ended by then
  /// @throws the operation's error
  bool wait_for(std::chrono::nanoseconds duration);
  /// The same with a `stream`, as for wait().
  bool wait_for(std::chrono::nanoseconds duration, void* stream);

  /// Has `notice` called once the operation has ended: at once, or by the thread that ends it, in
  /// the middle of the set's progress. So it must be short, and must not wait or use the set; if it
  /// throws there, the set ends on all ranks with a PeerLostError. For threads that leave the
  /// progress to others.
  void notify(std::function<void()> notice) const;

  /// @return when the operation's data began to move; only once the handle is ready
  std::chrono::steady_clock::time_point started() const;
  /// @return when the operation ended; only once the handle is ready
  std::chrono::steady_clock::time_point ended() const;

 private:
  runtime::Operation& operation() const;

  std::shared_ptr<runtime::Engine> engine_;
  std::shared_ptr<runtime::Operation> operation_;
};

}  // namespace kolo
#pragma GCC visibility pop
