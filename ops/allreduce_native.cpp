// All-reduce by MPI_Iallreduce, with whatever algorithm MPI chooses.
//
//   for each block
//   1 it is copied out of the input, with the prescale applied
//   2 MPI reduces the copy in place
//   3 it is copied into the output, with the postscale applied
//
// MPI cannot cancel a collective: after a failure it may still write when a message arrives. MPI is
// therefore never given the caller's memory.
//
// MPI has no 16-bit floats: they are widened to float32 in step 1 and rounded once in step 3, so
// partial sums do not overflow, at the cost of twice the bytes. What MPI does with NaN in Min and
// Max is up to the MPI library; the other algorithms keep it.
//
// Bytes: those of MPI's algorithm, not counted in Communicator::bytes_sent. Scratch: a block.
// Worlds: any size, with a communicator that has NativeCollectives.
#include <algorithm>

#include "base/convert.hpp"
#include "kolo/error.hpp"
#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/local_steps.hpp"
#include "ops/steps/transfer_scratch.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{8} << 20;

/// Steps 1 and 3 of 16-bit floats, a segment of `call` at a time.
struct Conversion {
  DType from_dtype;
  const std::byte* from;
  DType to_dtype;
  std::byte* to;
  double factor;
};
Task convert_elements(CollectiveCall call, Conversion conversion, std::size_t count) {
  const auto [from_dtype, from, to_dtype, to, factor] = conversion;
  const std::size_t segment = segment_length(call);
  for (std::size_t i = 0; i < segment_count(count, segment); ++i) {
    const Range range = segment_of({0, count}, segment, i);
    base::convert(from_dtype, from + range.begin * size_of(from_dtype), to_dtype,
                  to + range.begin * size_of(to_dtype), range.length, factor);
    co_await yield();
  }
}

/// Step 1.
Task load_block(CollectiveCall call, Range block, std::byte* to) {
  const std::byte* const from = bytes_of(call, call.input, block).data();
  const double factor = call.reduction.prescale;
  if (is_half(call.dtype)) {
    co_await convert_elements(call, {call.dtype, from, DType::Float32, to, factor}, block.length);
  } else if (factor != 1.0) {
    co_await scale_elements(call, factor, from, to, block.length);
  } else {
    co_await copy_elements(call, from, to, block.length);
  }
}

/// Step 3.
Task store_block(CollectiveCall call, Range block, const std::byte* from) {
  std::byte* const to = bytes_of(call, call.output, block).data();
  const double factor = call.reduction.postscale;
  if (is_half(call.dtype)) {
    co_await convert_elements(call, {DType::Float32, from, call.dtype, to, factor}, block.length);
  } else if (factor != 1.0) {
    co_await scale_elements(call, factor, from, to, block.length);
  } else {
    co_await copy_elements(call, from, to, block.length);
  }
}

/// The type that MPI is given. A bool is a byte that holds 0 or 1, so Min and Max are "and" and
/// "or".
DType type_for_mpi(DType dtype) {
  if (is_half(dtype)) return DType::Float32;
  return dtype == DType::Bool ? DType::UInt8 : dtype;
}

}  // namespace

Task allreduce_native(CollectiveCall call) {
  NativeCollectives* native = call.communicator->native();
  if (native == nullptr) {
    throw InvalidArgument(
        "all-reduce \"mpi\": this communicator has no collectives of its own; choose another "
        "algorithm");
  }
  if (call.count == 0) co_return;
  const DType dtype = type_for_mpi(call.dtype);
  const std::size_t length = kBlockBytes / size_of(dtype);
  TransferScratch scratch(std::min(call.count, length) * size_of(dtype));
  for (std::size_t i = 0; i < segment_count(call.count, length); ++i) {
    const Range block = segment_of({0, call.count}, length, i);
    co_await load_block(call, block, scratch.data());
    scratch.set_in_use(true);
    Transfer reduced =
        native->all_reduce(scratch.data(), scratch.data(), block.length, dtype, call.reduction.op);
    co_await reduced;
    scratch.set_in_use(false);
    co_await store_block(call, block, scratch.data());
  }
}

}  // namespace kolo::ops
