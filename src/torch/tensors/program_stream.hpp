#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace kolo::tensors {

/// The stream on which the program makes an operation's tensors and uses its results. On the CPU
/// there is none, and nothing to do.
class ProgramStream {
 public:
  ProgramStream() = default;
  /// The one that is current on the calling thread.
  static ProgramStream current(const c10::Device& device);
  /// Another one, behind what is on the current one now: what is then put on it, waits for
  /// operations too, holds up nothing of the program's.
  static ProgramStream beside_current(const c10::Device& device);

  /// For OperationOptions::stream.
  void* handle() const { return stream_ ? stream_->native_handle() : nullptr; }
  /// As long as the guard lives, memory that the calling thread allocates is this stream's.
  [[nodiscard]] c10::OptionalStreamGuard make_current() const {
    return c10::OptionalStreamGuard(stream_);
  }
  /// What the calling thread puts on its current stream from now on comes behind what is on this
  /// one.
  void come_before_current() const;
  /// What is put on this one from now on comes behind what is on the calling thread's current one.
  void come_behind_current() const;

  bool operator==(const ProgramStream& other) const = default;

 private:
  explicit ProgramStream(c10::Stream stream) : stream_(stream) {}
  c10::Stream current() const;

  std::optional<c10::Stream> stream_;
};

}  // namespace kolo::tensors
