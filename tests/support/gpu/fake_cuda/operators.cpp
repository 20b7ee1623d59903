// LibTorch's operators for the CUDA key: all run their CPU kernels, except those that allocate,
// share or retain memory.
#include <optional>

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "support/gpu/fake_cuda/allocator.hpp"
#include "support/gpu/fake_cuda/boxed_call.hpp"
#include "support/gpu/fake_cuda/device.hpp"
#include "support/gpu/fake_cuda/install.hpp"

namespace kolo::test {
namespace {

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_generic(sizes, &fake_cuda_allocator(), kCudaKeys,
                                              c10::dtype_or_default(type), format));
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &fake_cuda_allocator(),
                                                      kCudaKeys, c10::dtype_or_default(type)));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes,
                          std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, sizes, format);
}

at::Tensor& set_to_nothing_(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  const c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, &fake_cuda_allocator(),
                             /*resizable=*/true);
  return at::native::set_storage_cpu_(self, nothing, 0, {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  keep_for_stream(self.storage().data_ptr(), native_stream(stream));
}

torch::CppFunction by_cpu_kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&call_on_cpu>();
}

}  // namespace

void install_operators() {
  static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  all.fallback(by_cpu_kernel());

  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__,
                            __LINE__);
  own.impl("empty.memory_format", &empty);
  own.impl("empty_strided", &empty_strided);
  own.impl("resize_", &resize_);
  own.impl("record_stream", &record_stream);

  // These use only sizes, and work on any device.
  own.impl("view",
           static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(&at::native::view));
  own.impl("_reshape_alias", &at::native::_reshape_alias);
  own.impl("as_strided", &at::native::as_strided_tensorimpl);
  own.impl("unfold", &at::native::unfold);
  own.impl("set_", &set_to_nothing_);
  own.impl("set_.source_Storage",
           static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  own.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  own.impl("set_.source_Tensor", &at::native::set_tensor_);

  // LibTorch's own kernels for these would take precedence over the fallback: copies and
  // convolutions for GPUs, and losses that call their own out variants, which then warn.
  for (const char* name :
       {"copy_", "convolution", "convolution_backward", "mse_loss", "smooth_l1_loss"}) {
    own.impl(name, by_cpu_kernel());
  }
}

}  // namespace kolo::test
