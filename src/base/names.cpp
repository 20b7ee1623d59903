#include <string>

#include "kolo/dtype.hpp"
#include "kolo/error.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shard.hpp"

namespace kolo {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::UInt8: return "uint8";
    case DType::Int8: return "int8";
    case DType::Int16: return "int16";
    case DType::Int32: return "int32";
    case DType::Int64: return "int64";
    case DType::Float16: return "float16";
    case DType::BFloat16: return "bfloat16";
    case DType::Float32: return "float32";
    case DType::Float64: return "float64";
    case DType::Bool: return "bool";
    case DType::Complex64: return "complex64";
    case DType::Complex128: return "complex128";
  }
  return "unknown";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Average: return "Average";
    case ReduceOp::Sum: return "Sum";
    case ReduceOp::Min: return "Min";
    case ReduceOp::Max: return "Max";
    case ReduceOp::Product: return "Product";
    case ReduceOp::Adasum: return "Adasum";
    case ReduceOp::Custom: return "Custom";
    case ReduceOp::BitAnd: return "BitAnd";
    case ReduceOp::BitOr: return "BitOr";
    case ReduceOp::BitXor: return "BitXor";
  }
  return "unknown";
}

std::string_view name_of(Shard shard) {
  switch (shard) {
    case Shard::None: return "none";
    case Shard::Optimizer: return "optimizer";
    case Shard::Gradients: return "gradients";
    case Shard::Full: return "full";
  }
  return "unknown";
}

Shard shard_named(std::string_view name) {
  std::string known;
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    if (name == name_of(shard)) return shard;
    known += (known.empty() ? "" : ", ") + std::string(name_of(shard));
  }
  throw InvalidArgument("there is no shard mode '" + std::string(name) + "'. Known: " + known +
                        ".");
}

}  // namespace kolo
