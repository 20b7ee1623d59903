#include "comm/library_versions.hpp"

#include <array>
#include <string_view>

#include <mpi.h>

#include "comm/mpi_check.hpp"

#ifdef KOLO_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace kolo::comm {

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  KOLO_MPI_TRY(MPI_Get_library_version(text.data(), &length));
  const std::string_view version(text.data());  // some libraries count the final zero in `length`
  return std::string(version.substr(0, version.find('\n')));
}

std::string cuda_version() {
#ifdef KOLO_CUDA
  const auto number = [](int value) { return std::to_string(value); };
  return "CUDA " + number(CUDART_VERSION / 1000) + "." + number(CUDART_VERSION % 1000 / 10) +
         ", NCCL " + number(NCCL_MAJOR) + "." + number(NCCL_MINOR) + "." + number(NCCL_PATCH);
#else
  return "off";
#endif
}

}  // namespace kolo::comm
