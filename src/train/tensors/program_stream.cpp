#include "kolo/torch/program_stream.hpp"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include "comm/gpu/gpu.hpp"

namespace kolo {
namespace {

/// LibTorch's allocator keeps what it once had, and Kolo allocates from CUDA. Here, since all
/// operations on CUDA tensors use this file: a linker drops an object that nothing refers to.
void release_cached_memory() {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9  // native_handle() needs a newer one still
  if (!at::hasCUDA()) return;
  auto* const cache = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA));
  if (cache != nullptr && cache->initialized()) cache->emptyCache();
#endif
}

[[maybe_unused]] const bool is_set =
    (comm::set_release_of_cached_memory(&release_cached_memory), true);

void order(const c10::Stream& first, const c10::Stream& then) {
  if (first == then) return;
  c10::Event event(first.device_type());
  event.record(first);
  event.block(then);
}

}  // namespace

ProgramStream ProgramStream::current(const c10::Device& device) {
  if (device.is_cpu()) return {};
  return ProgramStream(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

ProgramStream ProgramStream::beside(const c10::Device& device) {
  if (device.is_cpu()) return {};
  return ProgramStream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

ProgramStream ProgramStream::beside_current(const c10::Device& device) {
  const ProgramStream beside = ProgramStream::beside(device);
  beside.order_after_current();
  return beside;
}

c10::Stream ProgramStream::current() const {
  return c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device());
}

void ProgramStream::order_before_current() const {
  if (stream_) order(*stream_, current());
}

void ProgramStream::order_after_current() const {
  if (stream_) order(current(), *stream_);
}

void ProgramStream::keep(const c10::DataPtr& memory) const {
  if (!stream_) return;
  c10::impl::VirtualGuardImpl(stream_->device_type()).recordDataPtrOnStream(memory, *stream_);
}

}  // namespace kolo
