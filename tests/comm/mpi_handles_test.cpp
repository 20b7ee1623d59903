#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include "comm/mpi_communicator.hpp"

namespace kolo::comm::mpi_handles_test {

using MpiType = MpiOwner<MPI_Datatype, MPI_Type_free>;
using MpiReduceOp = MpiOwner<MPI_Op, MPI_Op_free>;

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

  MPI_Comm make(int& freed) {
    MPI_Comm communicator = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_SELF, &communicator);
    MPI_Comm_set_attr(communicator, key_, &freed);
    return communicator;
  }

  int key_ = MPI_KEYVAL_INVALID;
};

TEST_F(MpiHandlesTest, Owner_FreesOnce) {
  int freed = 0;
  {
    const MpiComm owner = MpiComm::owning(make(freed), MPI_COMM_NULL);
    EXPECT_NE(owner.get(), MPI_COMM_NULL);
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
}

TEST_F(MpiHandlesTest, MoveConstruction_TransfersOwnership) {
  int freed = 0;
  {
    MpiComm owner = MpiComm::owning(make(freed), MPI_COMM_NULL);
    const MPI_Comm handle = owner.get();
    {
      const MpiComm moved(std::move(owner));
      EXPECT_EQ(moved.get(), handle);
      EXPECT_EQ(owner.get(), MPI_COMM_NULL);
    }
    EXPECT_EQ(freed, 1);
  }
  EXPECT_EQ(freed, 1);
}

TEST_F(MpiHandlesTest, MoveAssignment_FreesThePreviousHandle) {
  int freed_first = 0;
  int freed_second = 0;
  {
    MpiComm first = MpiComm::owning(make(freed_first), MPI_COMM_NULL);
    MpiComm second = MpiComm::owning(make(freed_second), MPI_COMM_NULL);
    first = std::move(second);
    EXPECT_EQ(freed_first, 1);
    EXPECT_EQ(freed_second, 0);
    EXPECT_EQ(second.get(), MPI_COMM_NULL);
  }
  EXPECT_EQ(freed_first, 1);
  EXPECT_EQ(freed_second, 1);
}

TEST_F(MpiHandlesTest, SelfMove_ChangesNothing) {
  int freed = 0;
  {
    MpiComm owner = MpiComm::owning(make(freed), MPI_COMM_NULL);
    const MPI_Comm handle = owner.get();
    MpiComm& self = owner;
    owner = std::move(self);
    EXPECT_EQ(owner.get(), handle);
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
}

TEST_F(MpiHandlesTest, View_NeverFrees) {
  int freed = 0;
  int freed_other = 0;
  MPI_Comm communicator = make(freed);
  {
    MpiComm view = MpiComm::viewing(communicator, MPI_COMM_NULL);
    const MpiComm moved(std::move(view));
    EXPECT_EQ(moved.get(), communicator);
    MpiComm owner = MpiComm::owning(make(freed_other), MPI_COMM_NULL);
    owner = MpiComm::viewing(communicator, MPI_COMM_NULL);
    EXPECT_EQ(freed_other, 1);
  }
  EXPECT_EQ(freed, 0);
  MPI_Comm_free(&communicator);
  EXPECT_EQ(freed, 1);
}

TEST_F(MpiHandlesTest, ReleasedHandle_IsNotFreed) {
  int freed = 0;
  MPI_Comm communicator = MPI_COMM_NULL;
  {
    MpiComm owner = MpiComm::owning(make(freed), MPI_COMM_NULL);
    communicator = owner.release();
    EXPECT_EQ(owner.get(), MPI_COMM_NULL);
  }
  EXPECT_EQ(freed, 0);
  MPI_Comm_free(&communicator);
}

TEST(MpiOwnerTest, OtherKindsOfHandles_AreOwned) {
  MPI_Datatype pair = MPI_DATATYPE_NULL;
  ASSERT_EQ(MPI_Type_contiguous(2, MPI_INT, &pair), 0);
  MpiType type = MpiType::owning(pair, MPI_DATATYPE_NULL);
  const MpiType moved_type(std::move(type));
  EXPECT_EQ(moved_type.get(), pair);
  EXPECT_EQ(type.get(), MPI_DATATYPE_NULL);

  MPI_Op op = MPI_OP_NULL;
  ASSERT_EQ(MPI_Op_create([](void*, void*, int*, MPI_Datatype*) {}, 1, &op), 0);
  MpiReduceOp owner = MpiReduceOp::owning(op, MPI_OP_NULL);
  const MpiReduceOp moved(std::move(owner));
  EXPECT_EQ(moved.get(), op);
  EXPECT_EQ(owner.get(), MPI_OP_NULL);
}

}  // namespace kolo::comm::mpi_handles_test
