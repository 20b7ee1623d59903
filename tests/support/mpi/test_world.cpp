#include "support/mpi/test_world.hpp"

#include <utility>

#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test {

InitOptions in_test_world(Config config) {
  return {.config = std::move(config), .communicator = MpiRanks::instance().group()};
}

}  // namespace kolo::test
