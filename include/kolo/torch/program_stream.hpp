#pragma once

#include <optional>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include "kolo/error.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// The stream on which the program produces an operation's tensors and uses its results, for
/// operations on views of CUDA tensors: `{.stream = ProgramStream::current(x.device()).handle()}`.
/// Those on tensors (kolo/torch/tensor_collectives.hpp) find it by themselves. On the CPU there is
/// none, and all functions do nothing.
class ProgramStream {
 public:
  ProgramStream() = default;
  /// The calling thread's current stream.
  static ProgramStream current(const c10::Device& device);
  /// Another stream. Waiting on it, also for operations, does not delay the program's kernels.
  static ProgramStream beside(const c10::Device& device);
  /// Another stream, ordered after the work now on the current one.
  static ProgramStream beside_current(const c10::Device& device);

  /// For OperationOptions::stream.
  void* handle() const { return stream_ ? native_handle(*stream_) : nullptr; }
  /// While the guard lives, the calling thread allocates memory for this stream.
  [[nodiscard]] c10::OptionalStreamGuard make_current() const {
    return c10::OptionalStreamGuard(stream_);
  }
  /// Orders the work on this stream before later work on the calling thread's current stream.
  void order_before_current() const;
  /// Orders the work on the calling thread's current stream before later work on this one.
  void order_after_current() const;
  /// Whether it is the calling thread's current stream.
  bool is_current() const { return !stream_ || *stream_ == current(); }
  /// Lets work that is on this stream when the memory is freed still use it.
  void keep(const c10::DataPtr& memory) const;

  bool operator==(const ProgramStream& other) const = default;

 private:
  explicit ProgramStream(c10::Stream stream) : stream_(stream) {}
  template <class Stream>
  static void* native_handle(const Stream& stream) {
    if constexpr (requires { stream.native_handle(); }) {
      return stream.native_handle();
    } else {
      throw InvalidArgument(
          "this version of LibTorch does not expose handles of CUDA streams. Build with LibTorch "
          "2.11 or newer, or keep the tensors on the CPU.");
    }
  }
  c10::Stream current() const;

  std::optional<c10::Stream> stream_;
};

}  // namespace kolo
#pragma GCC visibility pop
