// All-reduce on plain memory: every rank contributes a vector, every rank gets the sum.
//
//   mpirun -np 2 01_hello_allreduce
#include <cstdio>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

int main() {
  kolo::Runtime runtime;  // starts Kolo; shuts down at the end of main

  std::vector<float> values{1.0F + static_cast<float>(runtime.rank()), 10.0F, 100.0F};
  const kolo::TensorView tensor{values.data(), kolo::DType::Float32, {3}};
  kolo::allreduce(tensor, tensor, {.op = kolo::ReduceOp::Sum, .name = "hello"});

  std::printf("rank %d of %d: sum = [%g, %g, %g]\n", runtime.rank(), runtime.size(),
              static_cast<double>(values[0]), static_cast<double>(values[1]),
              static_cast<double>(values[2]));
  return 0;
}
