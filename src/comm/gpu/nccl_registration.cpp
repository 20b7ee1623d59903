#include "comm/gpu/nccl_registration.hpp"

#include <dlfcn.h>

#include "base/log.hpp"
#include "comm/gpu/cuda_check.hpp"

namespace kolo::comm {
namespace {

struct Functions {
  ncclResult_t (*enter)(ncclComm_t, void*, std::size_t, void**);
  ncclResult_t (*remove)(ncclComm_t, void*);
};

template <class Function>
void look_up(const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

const Functions& functions() {
  static const Functions found = [] {
    Functions all{};
    look_up("ncclCommRegister", all.enter);
    look_up("ncclCommDeregister", all.remove);
    return all;
  }();
  return found;
}

}  // namespace

void* register_with_nccl(ncclComm_t communicator, void* memory, std::size_t bytes) {
  if (functions().enter == nullptr || functions().remove == nullptr) return nullptr;
  void* registration = nullptr;
  const ncclResult_t code = functions().enter(communicator, memory, bytes, &registration);
  if (code == ncclSuccess) return registration;
  KOLO_LOG(Warn) << describe(code, "ncclCommRegister");
  return nullptr;
}

void deregister_with_nccl(ncclComm_t communicator, void* registration) {
  KOLO_NCCL_TRY(functions().remove(communicator, registration));
}

}  // namespace kolo::comm
