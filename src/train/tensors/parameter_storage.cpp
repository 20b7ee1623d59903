#include "train/tensors/parameter_storage.hpp"

#include <memory>
#include <utility>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

namespace kolo::train {
namespace {

bool& refuses_access(at::StorageImpl& storage);
bool& refuses_writes(at::StorageImpl& storage);

/// LibTorch can refuse access to a storage, but cannot allow it again. Only an explicit
/// instantiation may name the flags, which are private.
template <bool at::StorageImpl::* Access, bool at::StorageImpl::* Writes>
struct AccessFlags {
  friend bool& refuses_access(at::StorageImpl& storage) { return storage.*Access; }
  friend bool& refuses_writes(at::StorageImpl& storage) { return storage.*Writes; }
};
template struct AccessFlags<&at::StorageImpl::throw_on_immutable_data_ptr_,
                            &at::StorageImpl::throw_on_mutable_data_ptr_>;

void set_elements(at::StorageImpl& storage, at::DataPtr elements, Refused refused) {
  refuses_access(storage) = refused == Refused::Access;
  refuses_writes(storage) = refused == Refused::Writes;
  storage.set_data_ptr_noswap(std::move(elements));  // also puts the flags into effect
}

}  // namespace

void set_refusal(const c10::Storage& storage, const std::string& text) {
  storage.unsafeGetStorageImpl()->get_extra_meta().custom_data_ptr_error_msg_ = text;
}

void refuse(const c10::Storage& storage, Refused refused) {
  at::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  set_elements(impl, std::move(impl._mutable_data_ptr_no_checks()), refused);
}

void take_elements(const c10::Storage& storage, c10::DeleterFnPtr kind) {
  set_elements(*storage.unsafeGetStorageImpl(),
               at::DataPtr(nullptr, nullptr, kind, storage.device()), Refused::Access);
}

void set_elements(const c10::Storage& storage, at::DataPtr elements) {
  set_elements(*storage.unsafeGetStorageImpl(), std::move(elements), Refused::Nothing);
}

bool has_deleter(const c10::Storage& storage, c10::DeleterFnPtr kind) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_deleter() == kind;
}

namespace {

void no_elements_to_release(void*) {}

}  // namespace

at::Tensor make_stand_in(const at::Tensor& tensor, const std::string& refusal) {
  if (tensor.is_sparse()) {
    return at::_sparse_coo_tensor_unsafe(make_stand_in(tensor._indices(), refusal),
                                         make_stand_in(tensor._values(), refusal), tensor.sizes());
  }
  at::Tensor empty = at::empty({0}, tensor.options().requires_grad(false));
  empty.unsafeGetTensorImpl()->set_sizes_contiguous(tensor.sizes());
  empty.storage().set_nbytes(tensor.nbytes());
  set_refusal(empty.storage(), refusal);
  take_elements(empty.storage(), no_elements_to_release);
  return empty;
}

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

}  // namespace kolo::train
