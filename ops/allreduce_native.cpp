// All-reduce by the library below: MPI_Iallreduce, whatever algorithm that chooses.
//
//   1 the prescale is applied (into the output; the input stays as it is)
//   2 MPI reduces, in place where there is a scaled copy already
//   3 the postscale is applied
//
// MPI knows no 16-bit floats: they are widened to float32 in step 1 and rounded once in step 3, so
// partial sums do not overflow, for twice the bytes. What MPI does with NaN in Min and Max is up to
// the MPI library; the other algorithms keep it.
//
// Bytes: as MPI's choice has it, not counted in Communicator::bytes_sent.
// Worlds: any size, with a communicator that has NativeCollectives.
#include "base/convert.hpp"
#include "kolo/error.hpp"
#include "ops/algorithms.hpp"
#include "ops/local_steps.hpp"
#include "ops/pieces.hpp"
#include "ops/transfer_scratch.hpp"

namespace kolo::ops {
namespace {

/// In blocks whose count and bytes fit MPI's int.
Task reduce_in_blocks(NativeCollectives& native, const void* input, void* output, std::size_t count,
                      DType dtype, ReduceOp op) {
  const std::size_t element = size_of(dtype);
  const std::size_t block = Communicator::kMaxMessageBytes / element;
  for (std::size_t i = 0; i < segment_count(count, block); ++i) {
    const Range range = segment_of({0, count}, block, i);
    const std::size_t offset = range.begin * element;
    Transfer reduced =
        native.all_reduce(static_cast<const std::byte*>(input) + offset,
                          static_cast<std::byte*>(output) + offset, range.length, dtype, op);
    co_await reduced;
  }
}

Task reduce_halves(CollectiveCall call, NativeCollectives& native) {
  TransferScratch scratch(call.count * sizeof(float));
  auto* wide = reinterpret_cast<float*>(scratch.data());
  const std::size_t segment = segment_length(call);
  for (std::size_t i = 0; i < segment_count(call.count, segment); ++i) {
    const Range range = segment_of({0, call.count}, segment, i);
    base::convert(call.dtype, bytes_of(call, call.input, range).data(), DType::Float32,
                  wide + range.begin, range.length, call.reduction.prescale);
    co_await next_turn();
  }
  scratch.set_in_use(true);
  co_await reduce_in_blocks(native, wide, wide, call.count, DType::Float32, call.reduction.op);
  scratch.set_in_use(false);
  for (std::size_t i = 0; i < segment_count(call.count, segment); ++i) {
    const Range range = segment_of({0, call.count}, segment, i);
    base::convert(DType::Float32, wide + range.begin, call.dtype,
                  bytes_of(call, call.output, range).data(), range.length,
                  call.reduction.postscale);
    co_await next_turn();
  }
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
  if (is_half(call.dtype)) {
    co_await reduce_halves(call, *native);
    co_return;
  }
  const std::byte* source = call.input;
  if (call.reduction.prescale != 1.0) {
    co_await scale_elements(call, call.reduction.prescale, call.input, call.output, call.count);
    source = call.output;
  }
  // A bool is a byte that holds 0 or 1, of which Min and Max are "and" and "or".
  const DType dtype = call.dtype == DType::Bool ? DType::UInt8 : call.dtype;
  co_await reduce_in_blocks(*native, source, call.output, call.count, dtype, call.reduction.op);
  if (call.reduction.postscale != 1.0) {
    co_await scale_elements(call, call.reduction.postscale, call.output, call.output, call.count);
  }
}

}  // namespace kolo::ops
