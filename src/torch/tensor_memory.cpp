#include "torch/tensor_memory.hpp"

#include <string>

#include "kolo/error.hpp"

namespace kolo::tensors {

DType dtype_of(const at::Tensor& tensor, std::string_view operation) {
  switch (tensor.scalar_type()) {
    case at::kByte: return DType::UInt8;
    case at::kChar: return DType::Int8;
    case at::kShort: return DType::Int16;
    case at::kInt: return DType::Int32;
    case at::kLong: return DType::Int64;
    case at::kHalf: return DType::Float16;
    case at::kBFloat16: return DType::BFloat16;
    case at::kFloat: return DType::Float32;
    case at::kDouble: return DType::Float64;
    case at::kBool: return DType::Bool;
    default:
      throw InvalidArgument(std::string(operation) + ": tensors of type " +
                            c10::toString(tensor.scalar_type()) +
                            " are not supported. Convert it to uint8, int8, int16, int32, int64, "
                            "float16, bfloat16, float32, float64 or bool first.");
  }
}

TensorView view_of(const at::Tensor& tensor, std::string_view operation) {
  if (!tensor.defined()) {
    throw InvalidArgument(std::string(operation) + ": the tensor is undefined");
  }
  if (tensor.layout() != at::kStrided) {
    throw InvalidArgument(std::string(operation) +
                          ": sparse tensors are not supported. Use tensor.to_dense().");
  }
  if (!tensor.is_cpu()) {
    throw InvalidArgument(std::string(operation) + ": the tensor lies on " + tensor.device().str() +
                          ", and this build of Kolo moves CPU tensors only. Use tensor.cpu().");
  }
  const DType dtype = dtype_of(tensor, operation);
  return {tensor.data_ptr(), dtype, tensor.sizes().vec(), Device{}};
}

}  // namespace kolo::tensors
