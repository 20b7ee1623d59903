#pragma once

#include <atomic>
#include <utility>

namespace kolo {

/// Keeps an object alive until the process ends: what a library below may still read or write after
/// a peer was lost. Any thread may call it. Leaks on purpose; nothing else may.
template <class T>
void leak_intentionally(T object) {
  struct Kept {
    T object;
    Kept* previous;
  };
  static std::atomic<Kept*> last = nullptr;  // leak checkers see that nothing is forgotten
  auto* kept = new Kept{std::move(object), last.load()};
  while (!last.compare_exchange_weak(kept->previous, kept)) {
  }
}

}  // namespace kolo
