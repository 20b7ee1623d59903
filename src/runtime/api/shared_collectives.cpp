#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kolo/shared_buffer.hpp"
#include "runtime/api/operation_checks.hpp"
#include "runtime/api/submit.hpp"

namespace kolo {

using runtime::add_invalid_reason;
using runtime::Operation;
using runtime::run;
using runtime::Submission;
using runtime::submit;

namespace {

/// A range of elements in a shared buffer.
class BufferRange {
 public:
  BufferRange(const SharedBuffer& buffer, std::size_t offset_bytes, DType dtype,
              std::vector<std::int64_t> shape)
      : buffer_(buffer),
        offset_(offset_bytes),
        view_{buffer.data() + offset_bytes, dtype, std::move(shape), buffer.device()} {}

  /// This rank's memory.
  const TensorView& view() const { return view_; }
  std::string place() const { return buffer_.identity() + " + " + std::to_string(offset_); }
  const std::shared_ptr<void>& owner() const { return buffer_.owner(); }

  /// Addresses on all ranks; empty for private memory.
  std::vector<std::byte*> peers(const ProcessSet& set) const {
    std::vector<std::byte*> peers = buffer_.peers(set);
    for (std::byte*& peer : peers) peer += offset_;
    return peers;
  }

  void check_bounds(Operation& operation) const {
    if (!operation.request.invalid_reason.empty()) return;  // the shape may be invalid
    const std::size_t room = buffer_.size_bytes() - std::min(offset_, buffer_.size_bytes());
    if (offset_ > buffer_.size_bytes() || !fits(room / size_of(view_.dtype))) {
      add_invalid_reason(operation, std::to_string(view_.count()) + " elements of " +
                                        std::string(name_of(view_.dtype)) + " from byte " +
                                        std::to_string(offset_) +
                                        " on lie outside the shared buffer of " +
                                        std::to_string(buffer_.size_bytes()) + " bytes");
    } else if (offset_ % size_of(view_.dtype) != 0) {
      add_invalid_reason(operation, "byte " + std::to_string(offset_) +
                                        " of the shared buffer cannot be the first of a " +
                                        std::string(name_of(view_.dtype)));
    }
  }

  /// Whether the shape has at most `room` elements, even if their number overflows.
  bool fits(std::size_t room) const {
    const std::vector<std::int64_t>& shape = view_.shape;
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
    for (const std::int64_t extent : shape) room /= static_cast<std::size_t>(extent);
    return room > 0;
  }

 private:
  const SharedBuffer& buffer_;
  std::size_t offset_;
  TensorView view_;
};

std::vector<std::int64_t> elements(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

/// Places the operation's only tensor in shared memory.
Submission placed(Submission submission, const BufferRange& range) {
  Operation& operation = *submission.operation;
  range.check_bounds(operation);
  operation.request.fusible = false;  // fusing would copy it
  operation.request.placement = range.place();
  operation.tensors.front().peer_buffers = range.peers(submission.set);
  operation.buffers.push_back(range.owner());
  return submission;
}

Submission make_allreduce(const BufferRange& range, const AllreduceOptions& options) {
  return placed(
      runtime::make_reduction(Collective::AllReduce, {{range.view(), range.view()}}, options),
      range);
}

Submission make_reduce_scatter(const BufferRange& range, const TensorView& output,
                               const AllreduceOptions& options) {
  return placed(
      runtime::make_reduction(Collective::ReduceScatter, {{range.view(), output}}, options), range);
}

Submission make_allgather(const SharedBuffer& buffer, std::size_t offset_bytes,
                          const std::vector<std::int64_t>& counts, DType dtype,
                          const OperationOptions& options) {
  Submission submission = runtime::make_operation(Collective::AllGather, options);
  const auto& [set, operation] = submission;
  if (counts.size() != static_cast<std::size_t>(set.size())) {
    add_invalid_reason(*operation, "there are " + std::to_string(counts.size()) + " counts for " +
                                       std::to_string(set.size()) + " ranks");
  }
  std::size_t total = 0;
  for (const std::int64_t count : counts) {
    if (count < 0) {
      add_invalid_reason(*operation, "a count is negative");
    } else if (static_cast<std::size_t>(count) > buffer.size_bytes() - total) {
      add_invalid_reason(*operation, "the counts lie outside the shared buffer of " +
                                         std::to_string(buffer.size_bytes()) + " bytes");
    } else {
      total += static_cast<std::size_t>(count);
    }
  }
  const BufferRange range(buffer, offset_bytes, dtype, elements(total));
  runtime::TensorMemory& memory = runtime::add_tensor(*operation, range.view());
  memory.output = static_cast<std::byte*>(range.view().data);
  operation->request.tensors.front().shape.clear();  // a row is one element
  operation->request.rows = counts;
  return placed(std::move(submission), range);
}

Submission make_broadcast(const BufferRange& range, int root, const OperationOptions& options) {
  return placed(runtime::make_broadcast({range.view()}, root, options), range);
}

/// `count` elements for each rank, as rows.
std::vector<std::int64_t> blocks(const OperationOptions& options, std::size_t count) {
  return {runtime::chosen(options.process_set).size(), static_cast<std::int64_t>(count)};
}

Submission make_alltoall(const BufferRange& input, const BufferRange& output,
                         const OperationOptions& options) {
  Submission submission = placed(
      runtime::make_alltoall(
          input.view(), {}, [data = output.view().data](const auto&) { return data; }, options),
      input);
  Operation& operation = *submission.operation;
  output.check_bounds(operation);
  runtime::check_overlap(operation, std::array{runtime::used_memory(
                                        operation, {input.view(), output.view()}, submission.set)});
  operation.request.placement += " to " + output.place();
  operation.buffers.push_back(output.owner());
  return submission;
}

Submission make_alltoall(const BufferRange& input, std::vector<std::int64_t> splits,
                         AllocateRows allocate, const OperationOptions& options) {
  return placed(
      runtime::make_alltoall(input.view(), std::move(splits), std::move(allocate), options), input);
}

}  // namespace

Handle allreduce_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, const AllreduceOptions& options) {
  return submit(make_allreduce({buffer, offset_bytes, dtype, elements(count)}, options));
}

void allreduce(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               const AllreduceOptions& options) {
  run(make_allreduce({buffer, offset_bytes, dtype, elements(count)}, options));
}

Handle reduce_scatter_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                            const std::vector<std::int64_t>& shape, const TensorView& output,
                            const AllreduceOptions& options) {
  return submit(make_reduce_scatter({buffer, offset_bytes, output.dtype, shape}, output, options));
}

void reduce_scatter(const SharedBuffer& buffer, std::size_t offset_bytes,
                    const std::vector<std::int64_t>& shape, const TensorView& output,
                    const AllreduceOptions& options) {
  run(make_reduce_scatter({buffer, offset_bytes, output.dtype, shape}, output, options));
}

Handle allgather_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                       const std::vector<std::int64_t>& counts, DType dtype,
                       const OperationOptions& options) {
  return submit(make_allgather(buffer, offset_bytes, counts, dtype, options));
}

void allgather(const SharedBuffer& buffer, std::size_t offset_bytes,
               const std::vector<std::int64_t>& counts, DType dtype,
               const OperationOptions& options) {
  run(make_allgather(buffer, offset_bytes, counts, dtype, options));
}

Handle broadcast_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, int root, const OperationOptions& options) {
  return submit(make_broadcast({buffer, offset_bytes, dtype, elements(count)}, root, options));
}

void broadcast(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               int root, const OperationOptions& options) {
  run(make_broadcast({buffer, offset_bytes, dtype, elements(count)}, root, options));
}

Handle alltoall_async(const SharedBuffer& input, std::size_t input_offset_bytes,
                      const SharedBuffer& output, std::size_t output_offset_bytes,
                      std::size_t count, DType dtype, const OperationOptions& options) {
  const BufferRange from(input, input_offset_bytes, dtype, blocks(options, count));
  const BufferRange to(output, output_offset_bytes, dtype, blocks(options, count));
  return submit(make_alltoall(from, to, options));
}

void alltoall(const SharedBuffer& input, std::size_t input_offset_bytes, const SharedBuffer& output,
              std::size_t output_offset_bytes, std::size_t count, DType dtype,
              const OperationOptions& options) {
  const BufferRange from(input, input_offset_bytes, dtype, blocks(options, count));
  const BufferRange to(output, output_offset_bytes, dtype, blocks(options, count));
  run(make_alltoall(from, to, options));
}

Handle alltoall_async(const SharedBuffer& input, std::size_t offset_bytes,
                      const std::vector<std::int64_t>& shape, DType dtype,
                      std::vector<std::int64_t> splits, AllocateRows allocate,
                      const OperationOptions& options) {
  return submit(make_alltoall({input, offset_bytes, dtype, shape}, std::move(splits),
                              std::move(allocate), options));
}

void alltoall(const SharedBuffer& input, std::size_t offset_bytes,
              const std::vector<std::int64_t>& shape, DType dtype, std::vector<std::int64_t> splits,
              AllocateRows allocate, const OperationOptions& options) {
  run(make_alltoall({input, offset_bytes, dtype, shape}, std::move(splits), std::move(allocate),
                    options));
}

}  // namespace kolo
