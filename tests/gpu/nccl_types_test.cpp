#include <gtest/gtest.h>

#include "comm/gpu/nccl_communicator.hpp"
#include "kolo/error.hpp"

namespace kolo::comm::nccl_types_test {

TEST(NcclTypesTest, TypesAreOfTheSameSizeAndKind) {
  EXPECT_EQ(nccl_type(DType::Bool), ncclUint8);
  EXPECT_EQ(nccl_type(DType::UInt8), ncclUint8);
  EXPECT_EQ(nccl_type(DType::Int8), ncclInt8);
  EXPECT_EQ(nccl_type(DType::Int32), ncclInt32);
  EXPECT_EQ(nccl_type(DType::Int64), ncclInt64);
  EXPECT_EQ(nccl_type(DType::Float16), ncclFloat16);
  EXPECT_EQ(nccl_type(DType::BFloat16), ncclBfloat16);
  EXPECT_EQ(nccl_type(DType::Float32), ncclFloat32);
  EXPECT_EQ(nccl_type(DType::Float64), ncclFloat64);
  EXPECT_THROW(nccl_type(DType::Int16), InvalidArgument);
}

TEST(NcclTypesTest, OperationsAreThoseThatAreDefined) {
  EXPECT_EQ(nccl_op(ReduceOp::Sum, DType::Int8), ncclSum);
  EXPECT_EQ(nccl_op(ReduceOp::Product, DType::Float16), ncclProd);
  EXPECT_EQ(nccl_op(ReduceOp::Min, DType::Bool), ncclMin);
  EXPECT_EQ(nccl_op(ReduceOp::Max, DType::Bool), ncclMax);
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Adasum, ReduceOp::Custom}) {
    EXPECT_THROW(nccl_op(op, DType::Float32), InvalidArgument);
  }
  EXPECT_THROW(nccl_op(ReduceOp::BitAnd, DType::Int32), InvalidArgument);
  EXPECT_THROW(nccl_op(ReduceOp::Sum, DType::Bool), InvalidArgument);
  EXPECT_THROW(nccl_op(ReduceOp::Product, DType::Bool), InvalidArgument);
}

}  // namespace kolo::comm::nccl_types_test
