#pragma once

#include <atomic>
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

}  // namespace kolo
