#pragma once

#include <memory>
#include <type_traits>

#include <nccl.h>

#include "comm/gpu/cuda_check.hpp"

namespace kolo::comm {

struct NcclCommDeleter {
  void operator()(ncclComm_t communicator) const noexcept {
    const ncclResult_t code = ncclCommAbort(communicator);
    if (code != ncclSuccess && code != ncclInProgress) {
      log_device_error(describe(code, "ncclCommAbort"));
    }
  }
};

/// Owns an NCCL communicator. Its deleter aborts, which is right after a failure and never waits
/// for others; an orderly end finalizes and destroys the communicator first.
using NcclComm = std::unique_ptr<std::remove_pointer_t<ncclComm_t>, NcclCommDeleter>;

/// Combines the calls until `end` into one operation. Also ends the group if one of them throws:
/// otherwise this thread's next calls would be part of it.
class NcclGroup {
 public:
  NcclGroup() { KOLO_NCCL_TRY(ncclGroupStart()); }
  NcclGroup(const NcclGroup&) = delete;  // it ends once
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    if (!has_ended_) static_cast<void>(ncclGroupEnd());  // an exception is being thrown
  }

  void end() {
    has_ended_ = true;
    KOLO_NCCL_TRY(ncclGroupEnd());
  }

 private:
  bool has_ended_ = false;
};

}  // namespace kolo::comm
