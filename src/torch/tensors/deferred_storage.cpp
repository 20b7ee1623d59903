#include "torch/tensors/deferred_storage.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

namespace kolo::tensors {
namespace {

/// The deleter of deferred storages, by which they are recognized.
void release_nothing(void*) {}

/// LibTorch has no way to make a storage accessible again.
c10::Storage new_storage(std::size_t bytes, at::DataPtr elements) {
  return {c10::Storage::use_byte_size_t(), bytes, std::move(elements), /*allocator=*/nullptr,
          /*resizable=*/false};
}

}  // namespace

void defer_storage(const at::Tensor& tensor, const std::string& name) {
  at::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, nullptr, release_nothing, tensor.device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "kolo::deferred: parameter '" + name +
      "' has no elements on this rank before an optimizer of its model is wrapped. Wrap it in a "
      "DistributedOptimizer first.");
}

bool is_deferred(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  at::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  return storage._mutable_data_ptr_no_checks().get_deleter() == &release_nothing;
}

void set_elements(const at::Tensor& tensor, at::DataPtr elements) {
  if (!is_deferred(tensor)) {
    return tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(elements));
  }
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(
      new_storage(tensor.storage().nbytes(), std::move(elements)));
}

void allocate_deferred(const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;  // deferred ones, and the new ones
  for (const at::Tensor& tensor : tensors) {
    if (!is_deferred(tensor)) continue;
    const c10::Storage& old = tensor.storage();
    auto known = std::ranges::find_if(storages, [&](const auto& entry) {
      return entry.first.unsafeGetStorageImpl() == old.unsafeGetStorageImpl();
    });
    if (known == storages.end()) {
      const std::size_t bytes = old.nbytes();
      storages.emplace_back(old, new_storage(bytes, c10::GetCPUAllocator()->allocate(bytes)));
      known = storages.end() - 1;
    }
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(known->second);
  }
}

}  // namespace kolo::tensors
