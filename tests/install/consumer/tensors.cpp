// Calls functions that link in the layer over LibTorch.
#include <iostream>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <kolo/runtime.hpp>
#include <kolo/torch/tensor_collectives.hpp>

int main() {
  const kolo::Runtime runtime;  // one process
  const at::Tensor twice =
      kolo::allreduce(at::arange(3.0), {.op = kolo::ReduceOp::Sum, .prescale = 2.0});
  std::cout << twice << '\n';
  return at::equal(twice, at::arange(0.0, 6.0, 2.0)) ? 0 : 1;
}
