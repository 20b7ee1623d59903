#pragma once

#include <memory>

namespace kolo::runtime {

/// The deleter of a SharedBuffer's owner, which its copies, tensors in it and operations share.
/// Whoever has the memory for a reason of their own keeps `memory`, and sees by a weak pointer to
/// the owner when nobody uses it any more.
struct BufferKeeper {
  std::shared_ptr<void> memory;

  void operator()(void*) { memory.reset(); }
};

}  // namespace kolo::runtime
