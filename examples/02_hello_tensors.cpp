// Collectives on tensors: average, gather, broadcast.
//
//   mpirun -np 2 02_hello_tensors
#include <iostream>

#include <ATen/Functions.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"

int main() {
  kolo::Runtime runtime;
  const int rank = kolo::rank();

  const at::Tensor mean = kolo::allreduce(at::full({3}, rank));            // Average is the default
  const at::Tensor rows = kolo::allgather(at::full({rank + 1, 2}, rank));  // rows may differ
  at::Tensor root = at::full({2}, 10 * rank);
  kolo::broadcast_(root, /*root=*/0);  // in place

  if (rank == 0) {
    std::cout << "mean of ranks\n"
              << mean << "\nrows of all\n"
              << rows << "\nfrom rank 0\n"
              << root << '\n';
  }
  return 0;
}
