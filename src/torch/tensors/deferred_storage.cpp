#include "torch/tensors/deferred_storage.hpp"

#include <utility>

#include <c10/core/Storage.h>

namespace kolo::tensors {
namespace {

/// The deleter of deferred storages, by which they are recognized.
void release_nothing(void*) {}

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
  // LibTorch has no way to make a storage accessible again.
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(
      c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(elements),
                   /*allocator=*/nullptr, /*resizable=*/false));
}

}  // namespace kolo::tensors
