#include "kolo/shared_buffer.hpp"

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "runtime/lane.hpp"
#include "runtime/submit.hpp"

namespace kolo {
namespace {

constexpr std::align_val_t kAlignment{64};

std::shared_ptr<void> private_memory(std::size_t size_bytes) {
  void* const memory = ::operator new(size_bytes, kAlignment);
  std::memset(memory, 0, size_bytes);
  return {memory, [](void* owned) { ::operator delete(owned, kAlignment); }};
}

}  // namespace

SharedBuffer::SharedBuffer(std::size_t size_bytes, const OperationOptions& options)
    : size_bytes_(size_bytes) {
  const TensorView extent{
      &size_bytes_, DType::UInt8, {static_cast<std::int64_t>(size_bytes)}, Device{}};
  ProcessSet& set = runtime::chosen(options.process_set);
  auto operation = runtime::make_operation(set, Collective::ShareMemory, options);
  runtime::add_tensor(*operation, extent);
  name_ = operation->request.name;
  runtime::submit(set, operation).wait();
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

Handle allreduce_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, const AllreduceOptions& options) {
  ProcessSet& set = runtime::chosen(options.process_set);
  const TensorView part{
      buffer.data_ + offset_bytes, dtype, {static_cast<std::int64_t>(count)}, Device{}};
  auto operation = runtime::make_reduction(set, Collective::AllReduce, {{part, part}}, options);
  if (offset_bytes > buffer.size_bytes_ || part.size_bytes() > buffer.size_bytes_ - offset_bytes) {
    add_defect(*operation, "bytes " + std::to_string(offset_bytes) + " to " +
                               std::to_string(offset_bytes + part.size_bytes()) +
                               " lie outside the shared buffer of " +
                               std::to_string(buffer.size_bytes_) + " bytes");
  }
  operation->request.fusible = false;  // it has its place already
  operation->request.placement = buffer.name_ + " + " + std::to_string(offset_bytes);
  using Owners = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  operation->keep_alive = std::make_shared<Owners>(buffer.owner_, options.keep_alive);
  for (std::byte* const peer : buffer.peers_) {
    operation->tensors[0].peer_buffers.push_back(peer + offset_bytes);
  }
  return runtime::submit(set, std::move(operation));
}

}  // namespace kolo
