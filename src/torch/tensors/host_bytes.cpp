#include "torch/tensors/host_bytes.hpp"

#include <cstdint>
#include <cstring>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

namespace kolo::tensors {

void copy_bytes(const at::Tensor& tensor, std::size_t offset, std::span<std::byte> place) {
  if (place.empty()) return;
  if (tensor.is_cpu()) {
    std::memcpy(place.data(), static_cast<const std::byte*>(tensor.const_data_ptr()) + offset,
                place.size());
    return;
  }
  const at::NoGradGuard no_grad;
  const auto size = static_cast<std::int64_t>(place.size());
  at::from_blob(place.data(), {size}, at::kByte)
      .copy_(tensor.view({-1}).view(at::kByte).narrow(0, static_cast<std::int64_t>(offset), size));
}

}  // namespace kolo::tensors
