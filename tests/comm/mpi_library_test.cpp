// What mpi_library.hpp says of an MPI's types and constants, against mpi.h: compiled for Open MPI
// and for MPICH.
#include "comm/mpi_library.hpp"

#include <cstring>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>
#include <mpi.h>

#include "kolo/error.hpp"
#include "support/errors.hpp"

namespace kolo::test::mpi_library_test {

using comm::MpiHandle;

template <class T>
MpiHandle handle_of(T native) {
  MpiHandle handle;
  if constexpr (std::is_pointer_v<T>) {
    handle.pointer = native;
  } else {
    handle.number = native;
  }
  return handle;
}

TEST(MpiLibraryTest, Handles_AreThoseOfMpi) {
  const comm::MpiLibrary& mpi = *comm::loaded_mpi();
  EXPECT_EQ(mpi.comm_world, handle_of(MPI_COMM_WORLD));
  EXPECT_EQ(mpi.comm_self, handle_of(MPI_COMM_SELF));
  EXPECT_EQ(mpi.comm_null, handle_of(MPI_COMM_NULL));
  EXPECT_EQ(mpi.request_null, handle_of(MPI_REQUEST_NULL));
  EXPECT_EQ(mpi.info_null, handle_of(MPI_INFO_NULL));
  EXPECT_EQ(mpi.byte, handle_of(MPI_BYTE));
  EXPECT_EQ(mpi.integer, handle_of(MPI_INT));
  EXPECT_EQ(mpi.max, handle_of(MPI_MAX));
  EXPECT_EQ(mpi.min, handle_of(MPI_MIN));
  EXPECT_EQ(mpi.errors_return, handle_of(MPI_ERRORS_RETURN));
  EXPECT_EQ(mpi.comm_f2c(MPI_Comm_c2f(MPI_COMM_SELF)), mpi.comm_self);
  EXPECT_EQ(mpi.comm_f2c(MPI_Comm_c2f(MPI_COMM_NULL)), mpi.comm_null);
}

TEST(MpiLibraryTest, Numbers_AreThoseOfMpi) {
  const comm::MpiLibrary& mpi = *comm::loaded_mpi();
  EXPECT_EQ(mpi.any_source, MPI_ANY_SOURCE);
  EXPECT_EQ(comm::kAnyTag, MPI_ANY_TAG);
  EXPECT_EQ(mpi.tag_upper_bound, MPI_TAG_UB);
  EXPECT_EQ(mpi.comm_type_shared, MPI_COMM_TYPE_SHARED);
  EXPECT_EQ(mpi.error_truncate, MPI_ERR_TRUNCATE);
  EXPECT_EQ(MPI_SUCCESS, 0);
  EXPECT_EQ(comm::kThreadSingle, MPI_THREAD_SINGLE);
  EXPECT_EQ(comm::kThreadFunneled, MPI_THREAD_FUNNELED);
  EXPECT_EQ(comm::kThreadSerialized, MPI_THREAD_SERIALIZED);
  EXPECT_EQ(comm::kThreadMultiple, MPI_THREAD_MULTIPLE);
}

TEST(MpiLibraryTest, Status_IsReadWhereMpiWritesIt) {
  MPI_Status native{};
  native.MPI_SOURCE = 3;
  native.MPI_TAG = 7;
  comm::MpiStatus status;
  static_assert(sizeof native <= sizeof status && alignof(MPI_Status) <= alignof(comm::MpiStatus));
  std::memcpy(status.words.data(), &native, sizeof native);
  EXPECT_EQ(comm::MpiLibrary::source(status), 3);
  EXPECT_EQ(comm::MpiLibrary::tag(status), 7);
}

TEST(MpiLibraryTest, Error_NamesTheCallWithMpisText) {
  const comm::MpiLibrary& mpi = *comm::loaded_mpi();
  int size = 0;
  mpi.comm_size(mpi.comm_world, &size);
  MpiHandle request;
  const std::string text = text_thrown_by<BackendError>(
      [&] { mpi.isend(nullptr, 0, mpi.byte, size + 5, 0, mpi.comm_world, &request); });
  expect_contains(text, "MPI_Isend failed with code");
  expect_contains(text, "rank");
}

}  // namespace kolo::test::mpi_library_test
