#pragma once

#include <memory>
#include <type_traits>

#include <nccl.h>

#include "comm/cuda_check.hpp"

namespace kolo::comm {

struct NcclCommDeleter {
  void operator()(ncclComm_t communicator) const noexcept {
    const ncclResult_t code = ncclCommAbort(communicator);
    if (code != ncclSuccess && code != ncclInProgress) {
      log_device_error(describe(code, "ncclCommAbort"));
    }
  }
};

/// Owns an NCCL communicator. Letting go of it aborts it, which is right wherever something has
/// failed and never waits for others; who ends in good order finalises and destroys it first.
using NcclComm = std::unique_ptr<std::remove_pointer_t<ncclComm_t>, NcclCommDeleter>;

}  // namespace kolo::comm
