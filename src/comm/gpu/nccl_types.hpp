#pragma once

#include <nccl.h>

#include "comm/gpu/device_communicator.hpp"
#include "kolo/dtype.hpp"

namespace kolo::comm {

/// What NCCL calls a type whose elements it combines. Throws InvalidArgument for what it cannot.
ncclDataType_t nccl_type(DType dtype);
/// What NCCL calls an operation; Sum also stands for one with a factor. Throws InvalidArgument for
/// what is not defined.
ncclRedOp_t nccl_op(DeviceReduction reduction, DType dtype);

/// An operation of NCCL for the time of the calls that are given it: made where there is a factor.
class NcclOperation {
 public:
  NcclOperation(DeviceReduction reduction, DType dtype, ncclComm_t communicator);
  NcclOperation(const NcclOperation&) = delete;  // what was made is destroyed once
  NcclOperation& operator=(const NcclOperation&) = delete;
  ~NcclOperation();

  ncclRedOp_t get() const { return op_; }

 private:
  ncclRedOp_t op_;
  ncclComm_t maker_ = nullptr;  // null where nothing was made
};

}  // namespace kolo::comm
