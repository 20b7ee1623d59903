#include "torch/tensors/parameter_storage.hpp"

#include <memory>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include "torch/tensors/storage_access.hpp"

namespace kolo::tensors {
namespace {

using Owner = std::shared_ptr<void>;

void release_copy_per_rank(void* owner) { delete static_cast<Owner*>(owner); }
/// The deleter that identifies storages with one copy.
void release_copy_per_node(void* owner) { delete static_cast<Owner*>(owner); }
/// The deleter of storages that are gathered on use, which own nothing.
void release_gathered(void*) {}

bool is_of_kind(const at::Tensor& tensor, c10::DeleterFnPtr kind) {
  return tensor.has_storage() && has_deleter(tensor.storage(), kind);
}

}  // namespace

bool has_own_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

void rebind_storage(const at::Tensor& tensor, const SharedBuffer& memory, std::size_t offset_bytes,
                    Copies copies) {
  set_elements(
      tensor.storage(),
      at::DataPtr(memory.data() + offset_bytes, new Owner(memory.owner()),
                  copies == Copies::PerRank ? release_copy_per_rank : release_copy_per_node,
                  tensor.device()));
}

void make_own_copy(const at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());  // where the allocator allocates
  at::DataPtr own = c10::GetAllocator(tensor.device().type())
                        ->clone(tensor.storage().data(), tensor.storage().nbytes());
  set_elements(tensor.storage(), std::move(own));
}

bool has_one_copy(const at::Tensor& tensor) { return is_of_kind(tensor, release_copy_per_node); }

void bind_storage(const c10::Storage& storage, void* memory) {
  set_elements(storage, at::DataPtr(memory, /*ctx=*/nullptr, release_gathered, storage.device()));
}

void unbind_storage(const c10::Storage& storage) { take_elements(storage, release_gathered); }

bool is_gathered_on_use(const at::Tensor& tensor) { return is_of_kind(tensor, release_gathered); }

}  // namespace kolo::tensors
