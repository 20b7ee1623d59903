#pragma once

#include <memory>

namespace kolo::runtime {

/// The deleter of a SharedBuffer's owner, which the buffer's copies, tensors in it and operations
/// share. Code that keeps the memory alive without being a user holds `memory` and a weak pointer
/// to the owner, which expires once nothing uses the buffer any more.
struct BufferKeeper {
  std::shared_ptr<void> memory;

  void operator()(void*) { memory.reset(); }
};

}  // namespace kolo::runtime
