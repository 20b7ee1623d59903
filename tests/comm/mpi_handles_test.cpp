#include <type_traits>
#include <utility>

#include <gtest/gtest.h>
#include <mpi.h>

#include "comm/mpi_communicator.hpp"

namespace kolo::comm::mpi_handles_test {

static_assert(!std::is_copy_constructible_v<MpiComm> && !std::is_copy_assignable_v<MpiComm>);
static_assert(std::is_nothrow_move_constructible_v<MpiComm>);

int count_free(MPI_Comm, int, void* counter, void*) {
  ++*static_cast<int*>(counter);
  return MPI_SUCCESS;
}

/// Creates communicators, and counts how many have been freed.
class MpiHandlesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, count_free, &key_, nullptr), 0);
  }
  void TearDown() override { MPI_Comm_free_keyval(&key_); }

  MpiHandle make(int& freed) {
    MPI_Comm communicator = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_SELF, &communicator);
    MPI_Comm_set_attr(communicator, key_, &freed);
    return loaded_mpi()->comm_f2c(MPI_Comm_c2f(communicator));
  }

  int key_ = MPI_KEYVAL_INVALID;
};

TEST_F(MpiHandlesTest, Owner_FreesOnce) {
  int freed = 0;
  {
    const MpiComm owner(make(freed));
    EXPECT_NE(owner.get(), MpiHandle());
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
}

TEST_F(MpiHandlesTest, MoveConstruction_TransfersOwnership) {
  int freed = 0;
  {
    MpiComm owner(make(freed));
    const MpiHandle handle = owner.get();
    {
      const MpiComm moved(std::move(owner));
      EXPECT_EQ(moved.get(), handle);
      EXPECT_EQ(owner.get(), MpiHandle());
    }
    EXPECT_EQ(freed, 1);
  }
  EXPECT_EQ(freed, 1);
}

TEST_F(MpiHandlesTest, ReleasedHandle_IsNotFreed) {
  int freed = 0;
  MpiHandle communicator;
  {
    MpiComm owner(make(freed));
    communicator = owner.release();
    EXPECT_EQ(owner.get(), MpiHandle());
  }
  EXPECT_EQ(freed, 0);
  mpi().comm_free(&communicator);
}

}  // namespace kolo::comm::mpi_handles_test
