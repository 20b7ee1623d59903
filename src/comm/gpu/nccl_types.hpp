#pragma once

#include <nccl.h>

#include "comm/gpu/device_communicator.hpp"
#include "kolo/dtype.hpp"

namespace kolo::comm {

/// NCCL's name of a type. Throws InvalidArgument for a type that it cannot reduce.
ncclDataType_t nccl_type(DType dtype);
/// NCCL's name of an operation, without its factor. Throws InvalidArgument if it is not defined.
ncclRedOp_t nccl_op(DeviceReduction reduction, DType dtype);

/// An NCCL operation, created if it has a factor. It must outlive the calls that use it.
class NcclOperation {
 public:
  NcclOperation(DeviceReduction reduction, DType dtype, ncclComm_t communicator);
  NcclOperation(const NcclOperation&) = delete;  // it is destroyed once
  NcclOperation& operator=(const NcclOperation&) = delete;
  ~NcclOperation();

  ncclRedOp_t get() const { return op_; }

 private:
  ncclRedOp_t op_;
  ncclComm_t communicator_ = nullptr;  // of a created operation; null if none was created
};

}  // namespace kolo::comm
