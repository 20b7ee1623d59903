#pragma once

#include <optional>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "kolo/error.hpp"

namespace kolo::c10d_backend {

/// The stream on which an operation runs, and on which its results are copied, beside the
/// program's. On the CPU there is none, and all functions do nothing. Extras see no internals of
/// Kolo, which has such a class.
class OperationStream {
 public:
  OperationStream() = default;
  /// A stream ordered after the work now on the calling thread's current one.
  static OperationStream beside_current(const c10::Device& device) {
    if (device.is_cpu()) return {};
    const c10::impl::VirtualGuardImpl guard(device.type());
    OperationStream beside;
    beside.stream_ = guard.getStreamFromGlobalPool(device);
    order(guard.getStream(device), *beside.stream_);
    return beside;
  }

  /// For OperationOptions::stream; null on the CPU alone.
  void* handle() const { return stream_ ? native_handle(*stream_) : nullptr; }
  [[nodiscard]] c10::OptionalStreamGuard make_current() const {
    return c10::OptionalStreamGuard(stream_);
  }
  /// Orders the work on this stream before later work on the calling thread's current stream.
  void order_before_current() const {
    if (stream_) order(*stream_, guard().getStream(stream_->device()));
  }
  /// Whether the GPU has done all work on this stream.
  bool is_idle() const { return !stream_ || guard().queryStream(*stream_); }
  /// Lets work that is on this stream when the memory is freed still use it.
  void keep(const c10::DataPtr& memory) const {
    if (stream_) guard().recordDataPtrOnStream(memory, *stream_);
  }

 private:
  c10::impl::VirtualGuardImpl guard() const {
    return c10::impl::VirtualGuardImpl(stream_->device_type());
  }
  static void order(const c10::Stream& first, const c10::Stream& then) {
    if (first == then) return;
    c10::Event event(first.device_type());
    event.record(first);
    event.block(then);
  }
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

  std::optional<c10::Stream> stream_;
};

}  // namespace kolo::c10d_backend
