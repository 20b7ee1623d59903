// Calls functions that link in the whole core, MPI included.
#include <iostream>

#include <kolo/collectives.hpp>

#ifndef KOLO_CXX11_ABI
#error "the package does not say with which C++ ABI Kolo was built"
#endif

int main() {
  const kolo::Runtime runtime;  // one process
  float values[] = {1, 2, 3};
  const kolo::TensorView view{values, kolo::DType::Float32, {3}, {}};
  kolo::allreduce(view, view, {.op = kolo::ReduceOp::Sum, .prescale = 2.0});
  std::cout << values[0] << ' ' << values[1] << ' ' << values[2] << '\n';
  return values[0] == 2 && values[1] == 4 && values[2] == 6 ? 0 : 1;
}
