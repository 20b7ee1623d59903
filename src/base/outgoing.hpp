#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "base/intentional_leak.hpp"

namespace kolo {

/// A value that is being sent to other ranks. If its owner gives up before `set_left`, the value
/// leaks intentionally, since MPI may still read it.
template <class T>
class Outgoing {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Outgoing(const T& value) : value_(std::make_unique<T>(value)) {}
  Outgoing(const Outgoing&) = delete;  // MPI holds the address
  Outgoing& operator=(const Outgoing&) = delete;
  ~Outgoing() {
    if (!has_left_) leak_intentionally(std::move(value_));
  }

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(value_.get(), 1)); }
  void set_left() { has_left_ = true; }

 private:
  std::unique_ptr<T> value_;
  bool has_left_ = false;
};

}  // namespace kolo
