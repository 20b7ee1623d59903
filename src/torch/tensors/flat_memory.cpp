#include "torch/tensors/flat_memory.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

using Owner = std::shared_ptr<void>;

void release_copy_per_rank(void* owner) { delete static_cast<Owner*>(owner); }
/// The deleter of storages with one copy, by which they are recognized.
void release_copy_per_node(void* owner) { delete static_cast<Owner*>(owner); }

}  // namespace

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

void rebind_storage(const at::Tensor& tensor, const SharedBuffer& memory, std::size_t offset_bytes,
                    Copies copies) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(
      memory.data() + offset_bytes, new Owner(memory.owner()),
      copies == Copies::PerRank ? release_copy_per_rank : release_copy_per_node, tensor.device()));
}

void make_own_copy(const at::Tensor& tensor) {
  at::DataPtr own = c10::GetAllocator(tensor.device().type())
                        ->clone(tensor.storage().data(), tensor.storage().nbytes());
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(own));
}

bool has_one_copy(const at::Tensor& tensor) {
  return tensor.has_storage() &&
         tensor.storage().data_ptr().get_deleter() == &release_copy_per_node;
}

}  // namespace kolo::tensors
