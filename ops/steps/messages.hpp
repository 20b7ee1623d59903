#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/intentional_leak.hpp"

namespace kolo::ops {

/// The tag of an algorithm's messages. Messages of one sender arrive in order, so one is enough.
inline constexpr int kTag = 0;

/// The tags of a direct exchange: of contributions to sums, and of sums. Both may be in flight.
inline constexpr int kContributionTag = 0;
inline constexpr int kResultTag = 1;

/// Scratch memory that MPI may still access when a task is destroyed, because of an abandoned send
/// or a native collective. It is not freed while it is in use.
class TransferScratch {
 public:
  explicit TransferScratch(std::size_t size_bytes)
      : bytes_(std::make_unique_for_overwrite<std::byte[]>(size_bytes)) {}
  TransferScratch(const TransferScratch&) = delete;  // transfers hold the address
  TransferScratch& operator=(const TransferScratch&) = delete;
  ~TransferScratch() {
    if (in_use_) leak_intentionally(std::move(bytes_));
  }

  std::byte* data() { return bytes_.get(); }
  void set_in_use(bool in_use) { in_use_ = in_use; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  bool in_use_ = false;
};

}  // namespace kolo::ops
