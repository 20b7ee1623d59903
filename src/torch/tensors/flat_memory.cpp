#include "torch/tensors/flat_memory.hpp"

#include <cstdint>
#include <memory>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {

SharedBuffer make_flat_memory(std::size_t size_bytes, const at::Device& device,
                              const OperationOptions& options) {
  if (device.is_cpu()) return SharedBuffer(size_bytes, options);
  const auto memory = std::make_shared<at::Tensor>(at::zeros(
      {static_cast<std::int64_t>(size_bytes)}, at::TensorOptions(at::kByte).device(device)));
  return {options.name, view_of(*memory, options.name), memory};
}

at::Tensor tensor_over(const SharedBuffer& memory, std::size_t offset_bytes, at::IntArrayRef shape,
                       const at::TensorOptions& type) {
  return at::from_blob(
      memory.data() + offset_bytes, shape, [owner = memory.owner()](void*) {},
      type.requires_grad(false), type.device());
}

}  // namespace kolo::tensors
