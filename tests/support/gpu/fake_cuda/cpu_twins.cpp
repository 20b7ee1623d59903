#include "support/gpu/fake_cuda/cpu_twins.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBody.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>

#include "support/gpu/fake_cuda/allocator.hpp"

namespace kolo::test {
namespace {

const c10::DispatchKeySet kCpuKeys(c10::DispatchKey::CPU);

at::Tensor tensor_in(const c10::Storage& storage, c10::DispatchKeySet keys,
                     const at::Tensor& like) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys,
                                                             like.unsafeGetTensorImpl()->dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                    like.storage_offset());
  return made;
}

/// The kernel may resize the storage; it then moves to CPU memory.
c10::Storage storage_over(const c10::Storage& memory) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), memory.nbytes(),
      c10::DataPtr(const_cast<void*>(memory.data()), c10::kCPU), c10::GetCPUAllocator(),
      /*resizable=*/true);
}

bool is_same_storage(const at::Tensor& one, const at::Tensor& other) {
  return one.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl();
}

}  // namespace

at::Tensor CpuTwins::twin_of(const at::Tensor& original) {
  const auto known = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
    return pair.original.is_same(original);
  });
  if (known != pairs_.end()) return known->twin;
  const auto neighbour = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
    return is_same_storage(pair.original, original);
  });
  const c10::Storage storage =
      neighbour != pairs_.end() ? neighbour->twin.storage() : storage_over(original.storage());
  pairs_.push_back({original, tensor_in(storage, kCpuKeys, original), storage.data()});
  return pairs_.back().twin;
}

void CpuTwins::copy_sizes_back() {
  for (const Pair& pair : pairs_) {
    const bool is_elsewhere = pair.twin.storage().data() != pair.memory;
    const at::Tensor resized = is_elsewhere ? copy_on_gpu(pair.twin) : pair.twin;
    c10::TensorImpl* const original = pair.original.unsafeGetTensorImpl();
    if (is_elsewhere) original->set_storage_keep_dtype(resized.storage());
    original->set_sizes_and_strides(resized.sizes(), resized.strides(), resized.storage_offset());
  }
}

std::optional<at::Tensor> CpuTwins::original_of(const at::Tensor& result) const {
  TORCH_CHECK(result.layout() == c10::kStrided, "the fake CUDA has strided tensors only");
  for (const Pair& pair : pairs_) {
    if (pair.twin.is_same(result)) return pair.original;
  }
  for (const Pair& pair : pairs_) {
    if (is_same_storage(pair.twin, result)) {
      return tensor_in(pair.original.storage(), kCudaKeys, result);
    }
  }
  return std::nullopt;
}

at::Tensor CpuTwins::copy_on_gpu(const at::Tensor& result) const {
  const at::Tensor dense = result.is_non_overlapping_and_dense() ? result : result.contiguous();
  const c10::DeviceGuard guard(device_);
  at::Tensor made(at::detail::empty_strided_generic(
      dense.sizes(), dense.strides(), &fake_cuda_allocator(), kCudaKeys, dense.scalar_type()));
  if (dense.numel() > 0) {
    std::memcpy(made.mutable_data_ptr(), dense.const_data_ptr(), dense.nbytes());
  }
  return made;
}

}  // namespace kolo::test
