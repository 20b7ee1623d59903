// A program of MPI that runs Kolo on a communicator of its own.
#include <iostream>

#include <kolo/collectives.hpp>
#include <kolo/mpi.hpp>
#include <mpi.h>

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
  float value = 3;
  {
    const kolo::Runtime runtime({.communicator = kolo::mpi_handle(own)});
    const kolo::TensorView view{&value, kolo::DType::Float32, {1}, {}};
    kolo::allreduce(view, view, {.op = kolo::ReduceOp::Sum, .prescale = 2.0});
  }
  MPI_Comm_free(&own);
  MPI_Finalize();
  std::cout << value << '\n';
  return value == 6 ? 0 : 1;
}
