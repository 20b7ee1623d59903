#pragma once

#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "kolo/mpi.hpp"
#include "kolo/runtime.hpp"
#include "mpi/runtime_variants.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test::runtime_mpi_test {

/// This rank's group: the program's even or odd ranks.
inline MPI_Comm parity_group() {
  static const MPI_Comm group = [] {
    MPI_Comm made = MPI_COMM_NULL;
    const int rank = MpiRanks::instance().rank();
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &made);
    return made;
  }();
  return group;
}

inline std::vector<RuntimeVariant> all_worlds() {
  std::vector<RuntimeVariant> variants = all_variants();
  variants.push_back(make_variant("Groups", [](Config&) {}));
  variants.back().in_groups = true;
  return variants;
}

class RuntimeMpiTest : public testing::TestWithParam<RuntimeVariant> {
 protected:
  InitOptions options() const {
    InitOptions options{.config = GetParam().config};
    if (GetParam().in_groups) options.communicator = mpi_handle(parity_group());
    return options;
  }
  static int expected_rank() {
    const int rank = MpiRanks::instance().rank();
    return GetParam().in_groups ? rank / 2 : rank;
  }
  static int expected_size() {
    const int size = MpiRanks::instance().size();
    const int is_even = MpiRanks::instance().rank() % 2 == 0 ? 1 : 0;
    return GetParam().in_groups ? (size + is_even) / 2 : size;
  }
};

}  // namespace kolo::test::runtime_mpi_test
