#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace kolo {

/// Keeps an object alive until the process ends, because MPI or a GPU may still read or write its
/// memory after a peer was lost. Any thread may call it. Nothing else in Kolo leaks.
template <class T>
void leak_intentionally(T object) {
  struct Kept {
    T object;
    Kept* previous;
  };
  static std::atomic<Kept*> last = nullptr;  // reachable, so leak checkers do not report it
  auto* kept = new Kept{std::move(object), last.load()};
  while (!last.compare_exchange_weak(kept->previous, kept)) {
  }
}

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
