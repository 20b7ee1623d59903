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

}  // namespace

void set_refusal(const c10::Storage& storage, const std::string& text) {
  storage.unsafeGetStorageImpl()->get_extra_meta().custom_data_ptr_error_msg_ = text;
}

void take_elements(const c10::Storage& storage, c10::DeleterFnPtr kind) {
  at::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  refuses_access(impl) = true;
  impl.set_data_ptr_noswap(at::DataPtr(nullptr, nullptr, kind, storage.device()));
}

void give_elements(const c10::Storage& storage, at::DataPtr elements) {
  at::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  refuses_access(impl) = false;
  impl.set_data_ptr_noswap(std::move(elements));
}

bool has_deleter(const c10::Storage& storage, c10::DeleterFnPtr kind) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_deleter() == kind;
}

}  // namespace kolo::tensors
