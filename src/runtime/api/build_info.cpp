#include <sstream>

#include <hwy/highway.h>

#include "comm/gpu/cuda_gpus.hpp"
#include "comm/mpi_library.hpp"
#include "kolo/runtime.hpp"
#include "ops/registry.hpp"

namespace kolo {
namespace {

std::string algorithms() {
  std::string names;
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (!names.empty()) names += ", ";
    names += std::string(name_of(algorithm.collective)) + " " + std::string(algorithm.name);
  }
  return names;
}

}  // namespace

std::string build_info() {
  std::ostringstream text;
  text << "Kolo " << KOLO_VERSION << '\n'
       << "compiler: " << KOLO_COMPILER << '\n'
       << "MPI: " << comm::mpi_version() << '\n'
       << "GPU: " << comm::cuda_version() << '\n'
       << "Highway: " << HWY_MAJOR << '.' << HWY_MINOR << '.' << HWY_PATCH << '\n'
       << "algorithms: " << algorithms() << '\n';
  return text.str();
}

}  // namespace kolo
