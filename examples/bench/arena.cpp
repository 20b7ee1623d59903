#include "bench/arena.hpp"

#include <cstring>
#include <new>

namespace bench {
namespace {

constexpr std::align_val_t kAlignment{4096};

}  // namespace

void Arena::Free::operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }

std::byte* Arena::reserve(std::size_t bytes) {
  if (bytes > size_bytes_) {
    memory_.reset();
    memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    std::memset(memory_.get(), 0, bytes);
    size_bytes_ = bytes;
  }
  return memory_.get();
}

}  // namespace bench
