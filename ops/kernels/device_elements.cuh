// The element types of kernels, on the GPU and on the CPU.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "kolo/dtype.hpp"

namespace kolo::ops {

/// A byte that holds 0 or 1.
struct BoolElement {
  std::uint8_t value;
};

template <DType kDType>
auto element_of() {
  if constexpr (kDType == DType::UInt8) return std::uint8_t();
  if constexpr (kDType == DType::Int8) return std::int8_t();
  if constexpr (kDType == DType::Int16) return std::int16_t();
  if constexpr (kDType == DType::Int32) return std::int32_t();
  if constexpr (kDType == DType::Int64) return std::int64_t();
  if constexpr (kDType == DType::Float16) return __half();
  if constexpr (kDType == DType::BFloat16) return __nv_bfloat16();
  if constexpr (kDType == DType::Float32) return float();
  if constexpr (kDType == DType::Float64) return double();
  if constexpr (kDType == DType::Bool) return BoolElement();
}
template <DType kDType>
using ElementOf = decltype(element_of<kDType>());

__host__ __device__ inline float to_float(float value) { return value; }
__host__ __device__ inline float to_float(double value) { return static_cast<float>(value); }
__host__ __device__ inline float to_float(__half value) { return __half2float(value); }
__host__ __device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class To>
__host__ __device__ To from_float(float value) {
  if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return static_cast<To>(value);
  }
}

/// A product that is rounded before anything is added to it: never part of a fused multiply-add.
__host__ __device__ inline float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
__host__ __device__ inline double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/// Elements that one instruction loads or stores.
template <class T, std::uint32_t kWidth>
struct alignas(kWidth * sizeof(T)) Vector {
  T elements[kWidth];
};

template <class Visit>
void visit_dtype(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::UInt8: return visit(std::integral_constant<DType, DType::UInt8>());
    case DType::Int8: return visit(std::integral_constant<DType, DType::Int8>());
    case DType::Int16: return visit(std::integral_constant<DType, DType::Int16>());
    case DType::Int32: return visit(std::integral_constant<DType, DType::Int32>());
    case DType::Int64: return visit(std::integral_constant<DType, DType::Int64>());
    case DType::Float16: return visit(std::integral_constant<DType, DType::Float16>());
    case DType::BFloat16: return visit(std::integral_constant<DType, DType::BFloat16>());
    case DType::Float32: return visit(std::integral_constant<DType, DType::Float32>());
    case DType::Float64: return visit(std::integral_constant<DType, DType::Float64>());
    case DType::Bool: return visit(std::integral_constant<DType, DType::Bool>());
    case DType::Complex64:
    case DType::Complex128: return;  // passed as their real and imaginary parts
  }
}

}  // namespace kolo::ops
