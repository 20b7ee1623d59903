#include "comm/gpu/nccl_types.hpp"

#include <array>
#include <cstddef>
#include <string>

#include "comm/gpu/cuda_check.hpp"
#include "comm/gpu/scalar.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::UInt8:
    case DType::Bool:  // a byte of 0 or 1: Min is "and", Max is "or"
      return ncclUint8;
    case DType::Int8: return ncclInt8;
    case DType::Int32: return ncclInt32;
    case DType::Int64: return ncclInt64;
    case DType::Float16: return ncclFloat16;
    case DType::BFloat16: return ncclBfloat16;
    case DType::Float32: return ncclFloat32;
    case DType::Float64: return ncclFloat64;
    case DType::Int16:
    case DType::Complex64:
    case DType::Complex128: break;
  }
  throw InvalidArgument("NCCL cannot reduce " + std::string(name_of(dtype)) +
                        (is_complex(dtype) ? ": reduce its parts" : ": convert it to int32 first"));
}

ncclRedOp_t nccl_op(DeviceReduction reduction, DType dtype) {
  const bool is_bool = dtype == DType::Bool;
  const bool is_scalable = reduction.op == ReduceOp::Sum && is_floating(dtype);
  if (reduction.factor != 1.0 && !is_scalable) {
    throw InvalidArgument("NCCL reduction of " + std::string(name_of(dtype)) + " by " +
                          std::string(name_of(reduction.op)) +
                          ": expected a factor of 1, except for sums of floating types, got " +
                          std::to_string(reduction.factor));
  }
  switch (reduction.op) {
    case ReduceOp::Min: return ncclMin;
    case ReduceOp::Max: return ncclMax;
    case ReduceOp::Sum:
      if (!is_bool) return ncclSum;
      break;
    case ReduceOp::Product:
      if (!is_bool) return ncclProd;
      break;
    case ReduceOp::Average:
    case ReduceOp::Adasum:
    case ReduceOp::Custom: break;
  }
  throw InvalidArgument("NCCL reduction of " + std::string(name_of(dtype)) + " by " +
                        std::string(name_of(reduction.op)) + " is not defined");
}

NcclOperation::NcclOperation(DeviceReduction reduction, DType dtype, ncclComm_t communicator)
    : op_(nccl_op(reduction, dtype)) {
  if (reduction.factor == 1.0) return;
  Scalar factor = scalar_of(dtype, reduction.factor);
  KOLO_NCCL_TRY(ncclRedOpCreatePreMulSum(&op_, factor.data(), nccl_type(dtype),
                                         ncclScalarHostImmediate, communicator));
  communicator_ = communicator;
}

NcclOperation::~NcclOperation() {
  if (communicator_ == nullptr) return;
  const ncclResult_t code = ncclRedOpDestroy(op_, communicator_);
  if (code != ncclSuccess) log_device_error(describe(code, "ncclRedOpDestroy"));
}

}  // namespace kolo::comm
