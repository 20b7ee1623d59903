#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kolo/shared_buffer.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/api/submit.hpp"

namespace kolo {

using runtime::add_invalid_reason;
using runtime::chosen;
using runtime::Operation;
using runtime::run;
using runtime::submit;

namespace {

using OperationPtr = std::shared_ptr<Operation>;

/// Elements in a shared buffer.
class Stretch {
 public:
  Stretch(const SharedBuffer& buffer, std::size_t offset_bytes, DType dtype,
          std::vector<std::int64_t> shape)
      : buffer_(buffer),
        offset_(offset_bytes),
        view_{buffer.data() + offset_bytes, dtype, std::move(shape), buffer.device()} {}

  /// On this rank.
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
    if (!operation.request.invalid_reason.empty()) return;  // its size may be none
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

  bool overlaps(const TensorView& other) const {
    if (other.count() == 0) return false;
    const auto begin = reinterpret_cast<std::uintptr_t>(view_.data);
    const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data);
    return begin < other_begin + other.size_bytes() && other_begin < begin + view_.size_bytes();
  }

 private:
  const SharedBuffer& buffer_;
  std::size_t offset_;
  TensorView view_;
};

std::vector<std::int64_t> elements(std::size_t count) { return {static_cast<std::int64_t>(count)}; }

void keep_alive(Operation& operation, const std::shared_ptr<void>& owner) {
  using Owners = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  operation.keep_alive = std::make_shared<Owners>(owner, std::move(operation.keep_alive));
}

/// Places the operation's only tensor in shared memory.
void place(Operation& operation, const ProcessSet& set, const Stretch& stretch) {
  stretch.check_bounds(operation);
  operation.request.fusible = false;  // fusing would copy it
  operation.request.placement = stretch.place();
  operation.tensors.front().peer_buffers = stretch.peers(set);
  keep_alive(operation, stretch.owner());
}

OperationPtr make_allreduce(ProcessSet& set, const Stretch& stretch,
                            const AllreduceOptions& options) {
  OperationPtr operation = runtime::make_reduction(set, Collective::AllReduce,
                                                   {{stretch.view(), stretch.view()}}, options);
  place(*operation, set, stretch);
  return operation;
}

OperationPtr make_reduce_scatter(ProcessSet& set, const Stretch& stretch, const TensorView& output,
                                 const AllreduceOptions& options) {
  const TensorView& input = stretch.view();
  OperationPtr operation =
      runtime::make_reduction(set, Collective::ReduceScatter, {{input, output}}, options);
  place(*operation, set, stretch);
  if (!operation->request.invalid_reason.empty() || !stretch.overlaps(output)) return operation;
  const auto rows = static_cast<std::size_t>(input.shape.front());
  const std::size_t own_begin = ops::piece_of(rows, set.size(), set.rank()).begin;
  const std::byte* const own =
      static_cast<const std::byte*>(input.data) + own_begin * (input.size_bytes() / rows);
  if (output.data != own) {
    add_invalid_reason(
        *operation,
        "the output overlaps the input, but is not this rank's rows of it, which begin " +
            std::to_string(own - static_cast<const std::byte*>(input.data)) +
            " bytes after its beginning");
  }
  return operation;
}

OperationPtr make_allgather(ProcessSet& set, const SharedBuffer& buffer, std::size_t offset_bytes,
                            const std::vector<std::int64_t>& counts, DType dtype,
                            const OperationOptions& options) {
  OperationPtr operation = runtime::make_operation(set, Collective::AllGather, options);
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
  const Stretch stretch(buffer, offset_bytes, dtype, elements(total));
  runtime::TensorMemory& memory = runtime::add_tensor(*operation, stretch.view());
  memory.output = static_cast<std::byte*>(stretch.view().data);
  operation->request.tensors.front().shape.clear();  // a row is one element
  operation->request.rows = counts;
  place(*operation, set, stretch);
  return operation;
}

OperationPtr make_broadcast(ProcessSet& set, const Stretch& stretch, int root,
                            const OperationOptions& options) {
  OperationPtr operation = runtime::make_broadcast(set, {stretch.view()}, root, options);
  place(*operation, set, stretch);
  return operation;
}

/// Blocks as rows, one for each rank.
std::vector<std::int64_t> blocks(const ProcessSet& set, std::size_t count) {
  return {set.size(), static_cast<std::int64_t>(count)};
}

OperationPtr make_alltoall(ProcessSet& set, const Stretch& input, const Stretch& output,
                           const OperationOptions& options) {
  OperationPtr operation = runtime::make_alltoall(
      set, input.view(), {},
      [data = output.view().data](const std::vector<std::int64_t>&) { return data; }, options);
  place(*operation, set, input);
  output.check_bounds(*operation);
  if (operation->request.invalid_reason.empty() && input.overlaps(output.view())) {
    add_invalid_reason(
        *operation, "the output at " + output.place() + " overlaps the input at " + input.place());
  }
  operation->request.placement += " to " + output.place();
  keep_alive(*operation, output.owner());
  return operation;
}

OperationPtr make_alltoall(ProcessSet& set, const Stretch& input, std::vector<std::int64_t> splits,
                           AllocateRows allocate, const OperationOptions& options) {
  OperationPtr operation =
      runtime::make_alltoall(set, input.view(), std::move(splits), std::move(allocate), options);
  place(*operation, set, input);
  return operation;
}

}  // namespace

Handle allreduce_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(buffer, offset_bytes, dtype, elements(count));
  return submit(set, make_allreduce(set, stretch, options));
}

void allreduce(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(buffer, offset_bytes, dtype, elements(count));
  run(set, make_allreduce(set, stretch, options));
}

Handle reduce_scatter_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                            const std::vector<std::int64_t>& shape, const TensorView& output,
                            const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(buffer, offset_bytes, output.dtype, shape);
  return submit(set, make_reduce_scatter(set, stretch, output, options));
}

void reduce_scatter(const SharedBuffer& buffer, std::size_t offset_bytes,
                    const std::vector<std::int64_t>& shape, const TensorView& output,
                    const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(buffer, offset_bytes, output.dtype, shape);
  run(set, make_reduce_scatter(set, stretch, output, options));
}

Handle allgather_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                       const std::vector<std::int64_t>& counts, DType dtype,
                       const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, make_allgather(set, buffer, offset_bytes, counts, dtype, options));
}

void allgather(const SharedBuffer& buffer, std::size_t offset_bytes,
               const std::vector<std::int64_t>& counts, DType dtype,
               const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  run(set, make_allgather(set, buffer, offset_bytes, counts, dtype, options));
}

Handle broadcast_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, int root, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(buffer, offset_bytes, dtype, elements(count));
  return submit(set, make_broadcast(set, stretch, root, options));
}

void broadcast(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               int root, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(buffer, offset_bytes, dtype, elements(count));
  run(set, make_broadcast(set, stretch, root, options));
}

Handle alltoall_async(const SharedBuffer& input, std::size_t input_offset_bytes,
                      const SharedBuffer& output, std::size_t output_offset_bytes,
                      std::size_t count, DType dtype, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch from(input, input_offset_bytes, dtype, blocks(set, count));
  const Stretch to(output, output_offset_bytes, dtype, blocks(set, count));
  return submit(set, make_alltoall(set, from, to, options));
}

void alltoall(const SharedBuffer& input, std::size_t input_offset_bytes, const SharedBuffer& output,
              std::size_t output_offset_bytes, std::size_t count, DType dtype,
              const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch from(input, input_offset_bytes, dtype, blocks(set, count));
  const Stretch to(output, output_offset_bytes, dtype, blocks(set, count));
  run(set, make_alltoall(set, from, to, options));
}

Handle alltoall_async(const SharedBuffer& input, std::size_t offset_bytes,
                      const std::vector<std::int64_t>& shape, DType dtype,
                      std::vector<std::int64_t> splits, AllocateRows allocate,
                      const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(input, offset_bytes, dtype, shape);
  return submit(set, make_alltoall(set, stretch, std::move(splits), std::move(allocate), options));
}

void alltoall(const SharedBuffer& input, std::size_t offset_bytes,
              const std::vector<std::int64_t>& shape, DType dtype, std::vector<std::int64_t> splits,
              AllocateRows allocate, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  const Stretch stretch(input, offset_bytes, dtype, shape);
  run(set, make_alltoall(set, stretch, std::move(splits), std::move(allocate), options));
}

}  // namespace kolo
