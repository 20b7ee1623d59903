#include "kolo/shared_buffer.hpp"

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "runtime/api/collectives.hpp"

namespace kolo {
namespace {

constexpr std::align_val_t kAlignment{64};

std::shared_ptr<void> private_memory(std::size_t size_bytes) {
  void* const memory = ::operator new(size_bytes, kAlignment);
  std::memset(memory, 0, size_bytes);
  return {memory, [](void* block) { ::operator delete(block, kAlignment); }};
}

}  // namespace

SharedBuffer::SharedBuffer(std::size_t size_bytes, const OperationOptions& options)
    : size_bytes_(size_bytes) {
  const runtime::Submission submission = runtime::make_sharing(size_bytes, options);
  const auto& [set, operation] = submission;
  name_ = operation->request.name;
  engine_ = set.engine();
  runtime::submit(submission).wait();
  identity_ = name_ + " (number " + std::to_string(operation->shared_memory_number) +
              " of process set " + std::to_string(set.number()) + ")";
  if (const auto window = operation->shared_window) {
    for (int rank = 0; rank < window->size(); ++rank) {
      peers_.push_back(window->segment(rank).data());
    }
    data_ = window->segment(window->rank()).data();
    owner_ = window;
  } else {
    owner_ = private_memory(size_bytes);
    data_ = static_cast<std::byte*>(owner_.get());
  }
}

SharedBuffer::SharedBuffer(std::string name, const TensorView& memory, std::shared_ptr<void> owner)
    : name_(std::move(name)),
      identity_(name_),
      size_bytes_(memory.size_bytes()),
      data_(static_cast<std::byte*>(memory.data)),
      device_(memory.device),
      owner_(std::move(owner)) {}

std::vector<std::byte*> SharedBuffer::peers(const ProcessSet& set) const {
  return set.engine() == engine_.lock() ? peers_ : std::vector<std::byte*>{};
}

}  // namespace kolo
