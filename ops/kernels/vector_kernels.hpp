#pragma once

#include <cstddef>
#include <span>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::ops {

/// One call of `combine`, as its kernels see it: elements `begin` to `end` of all buffers.
struct CombineCall {
  std::span<const std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::size_t begin;
  std::size_t end;
  double prescale;
  double postscale;
};

using CombineFunction = void (*)(const CombineCall&);

/// The kernel for the widest vectors of this machine. It scales floating and complex types only.
/// Null for combinations that is_combinable() excludes and for products of bytes and of complex
/// numbers, which have no vector form.
CombineFunction find_vector_kernel(DType dtype, ReduceOp op);

}  // namespace kolo::ops
