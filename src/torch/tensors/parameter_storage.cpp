#include "torch/tensors/parameter_storage.hpp"

#include <memory>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include "torch/tensors/deferred_storage.hpp"

namespace kolo::tensors {
namespace {

using Owner = std::shared_ptr<void>;

void release_copy_per_rank(void* owner) { delete static_cast<Owner*>(owner); }
/// The deleter of storages with one copy, by which they are recognized.
void release_copy_per_node(void* owner) { delete static_cast<Owner*>(owner); }
/// That of storages that are gathered on use, which own nothing.
void release_gathered(void*) {}

/// Even if access to the storage's memory is refused.
bool has_deleter(const at::Tensor& tensor, c10::DeleterFnPtr deleter) {
  if (!tensor.has_storage()) return false;
  at::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  return storage._mutable_data_ptr_no_checks().get_deleter() == deleter;
}

}  // namespace

bool has_own_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

void rebind_storage(const at::Tensor& tensor, const SharedBuffer& memory, std::size_t offset_bytes,
                    Copies copies) {
  set_elements(
      tensor, at::DataPtr(memory.data() + offset_bytes, new Owner(memory.owner()),
                          copies == Copies::PerRank ? release_copy_per_rank : release_copy_per_node,
                          tensor.device()));
}

void make_own_copy(const at::Tensor& tensor) {
  at::DataPtr own = c10::GetAllocator(tensor.device().type())
                        ->clone(tensor.storage().data(), tensor.storage().nbytes());
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(own));
}

bool has_one_copy(const at::Tensor& tensor) { return has_deleter(tensor, release_copy_per_node); }

void bind_storage(const c10::Storage& storage, void* memory) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(memory, /*ctx=*/nullptr, release_gathered, storage.device()));
}

void unbind_storage(const c10::Storage& storage) { bind_storage(storage, nullptr); }

void refuse_access(const c10::Storage& storage, const std::string& text) {
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(text);
}

bool is_gathered_on_use(const at::Tensor& tensor) { return has_deleter(tensor, release_gathered); }

}  // namespace kolo::tensors
