#include "support/mpi/groups.hpp"

#include <chrono>
#include <cstdlib>
#include <stop_token>
#include <string_view>

namespace kolo::test {

Groups groups_of_environment() {
  const char* const value = std::getenv("KOLO_TEST_GROUPS");
  const std::string_view name = value != nullptr ? value : "";
  if (name == "at_once") return Groups::AtOnce;
  return name == "in_turn" ? Groups::InTurn : Groups::One;
}

ProgramTraffic::ProgramTraffic() {
  if (groups_of_environment() == Groups::One) return;
  MPI_Comm_dup(MPI_COMM_WORLD, &everybody_);
  thread_ = std::jthread([this](const std::stop_token& stop) {
    for (int working = 1; working > 0;) {
      const int own = stop.stop_requested() ? 0 : 1;
      MPI_Allreduce(&own, &working, 1, MPI_INT, MPI_SUM, everybody_);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
}

ProgramTraffic::~ProgramTraffic() {
  if (everybody_ == MPI_COMM_NULL) return;
  thread_.request_stop();
  thread_.join();
  MPI_Comm_free(&everybody_);
}

Turn::Turn() {
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank_);
  if (groups_of_environment() == Groups::InTurn && world_rank_ % 2 == 1) {
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

Turn::~Turn() {
  if (groups_of_environment() == Groups::InTurn && world_rank_ % 2 == 0) {
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

}  // namespace kolo::test
