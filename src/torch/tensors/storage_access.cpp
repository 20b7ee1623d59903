#include "torch/tensors/storage_access.hpp"

#include <utility>

#include <c10/core/StorageImpl.h>

namespace kolo::tensors {
namespace {

bool& refuses_access(at::StorageImpl& storage);

/// LibTorch can refuse access to a storage, but cannot allow it again. Only an explicit
/// instantiation may name the flag, which is private.
template <bool at::StorageImpl::* Flag>
struct AccessFlag {
  friend bool& refuses_access(at::StorageImpl& storage) { return storage.*Flag; }
};
template struct AccessFlag<&at::StorageImpl::throw_on_immutable_data_ptr_>;

void set_elements(at::StorageImpl& storage, at::DataPtr elements, bool are_refused) {
  refuses_access(storage) = are_refused;
  storage.set_data_ptr_noswap(std::move(elements));  // also puts the flag into effect
}

void set_access(const c10::Storage& storage, bool is_refused) {
  at::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  set_elements(impl, std::move(impl._mutable_data_ptr_no_checks()), is_refused);
}

}  // namespace

void set_refusal(const c10::Storage& storage, const std::string& text) {
  storage.unsafeGetStorageImpl()->get_extra_meta().custom_data_ptr_error_msg_ = text;
}

void refuse_access(const c10::Storage& storage) { set_access(storage, true); }
void allow_access(const c10::Storage& storage) { set_access(storage, false); }

void take_elements(const c10::Storage& storage, c10::DeleterFnPtr kind) {
  set_elements(*storage.unsafeGetStorageImpl(),
               at::DataPtr(nullptr, nullptr, kind, storage.device()), true);
}

void set_elements(const c10::Storage& storage, at::DataPtr elements) {
  set_elements(*storage.unsafeGetStorageImpl(), std::move(elements), false);
}

bool has_deleter(const c10::Storage& storage, c10::DeleterFnPtr kind) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_deleter() == kind;
}

}  // namespace kolo::tensors
