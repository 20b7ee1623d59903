// Asynchronous operations: they are named, so that ranks may submit them in any order, and awaited
// when their results are needed.
//
//   mpirun -np 2 03_asynchronous
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/Functions.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"

int main() {
  kolo::Runtime runtime;
  constexpr int kTensors = 4;

  std::vector<kolo::TensorHandle> handles(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    const int which = (i + kolo::rank()) % kTensors;  // another order on every rank
    handles[static_cast<std::size_t>(which)] = kolo::allreduce_async(
        at::full({1 << which}, which),
        {.op = kolo::ReduceOp::Sum, .name = "tensor " + std::to_string(which)});
  }

  // … compute something else meanwhile …

  for (int i = 0; i < kTensors; ++i) {
    const at::Tensor sum = handles[static_cast<std::size_t>(i)].result();
    std::printf("rank %d: tensor %d has %ld elements of %g\n", kolo::rank(), i,
                static_cast<long>(sum.numel()), sum[0].item<double>());
  }
  return 0;
}
