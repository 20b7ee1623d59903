#include "comm/make_world.hpp"

#include "comm/mpi_environment.hpp"
#include "comm/mpi_world.hpp"
#include "comm/self_world.hpp"

namespace kolo::comm {

std::shared_ptr<World> make_world(const Config& config) {
  if (mpi_environment::is_available()) return std::make_shared<MpiWorld>(config);
  return std::make_shared<SelfWorld>();
}

}  // namespace kolo::comm
