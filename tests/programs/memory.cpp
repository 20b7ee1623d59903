#include "programs/memory.hpp"

#include <algorithm>
#include <numeric>

#include "programs/values.hpp"

namespace kolo::programs {
namespace {

constexpr std::size_t kGuardBytes = 16;
constexpr std::byte kGuard{0xA5};

std::size_t count_of(const std::vector<std::int64_t>& shape) { return Tensor{{}, shape}.count(); }

}  // namespace

GuardedBytes::GuardedBytes(std::size_t size_bytes, std::size_t shift_bytes)
    : begin_(kGuardBytes + shift_bytes),
      size_bytes_(size_bytes),
      memory_(begin_ + size_bytes + kGuardBytes, kGuard) {}

std::vector<std::byte> GuardedBytes::content() { return {data(), data() + size_bytes_}; }

bool GuardedBytes::is_intact() const {
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
  return std::all_of(memory_.begin(), begin, is_guard) &&
         std::all_of(begin + static_cast<std::ptrdiff_t>(size_bytes_), memory_.end(), is_guard);
}

OperationMemory::OperationMemory(const Program& program, const Operation& operation, int rank,
                                 const SharedBuffer* buffer)
    : operation_(operation), rank_(rank) {
  for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
    tensors_.push_back(make_tensor(program, i));
  }
  if (buffer == nullptr) return;
  buffer_ = *buffer;
  const std::vector<std::byte>& original = tensors_[0].original;
  const std::size_t room =
      buffer->size_bytes() - std::min(buffer->size_bytes(), operation.offset_bytes);
  std::copy_n(original.begin(), std::min(original.size(), room),
              buffer->data() + operation.offset_bytes);
}

OperationMemory::TensorMemory OperationMemory::make_tensor(const Program& program,
                                                           std::size_t index) const {
  const Tensor& tensor = operation_.tensors[index];
  const std::size_t element = size_of(tensor.dtype);
  const std::size_t shift = static_cast<std::size_t>(operation_.id) % 3 * element;
  TensorMemory memory;
  memory.original = input_of(program, operation_, index, rank_);
  memory.input = std::make_unique<GuardedBytes>(memory.original.size(), shift);
  std::copy(memory.original.begin(), memory.original.end(), memory.input->data());
  memory.input_shape = tensor.shape;
  memory.output_shape = tensor.shape;
  if (takes_rows(operation_)) {
    const std::size_t member = member_of(rank_, program.members(operation_));
    const std::vector<std::int64_t> parts =
        operation_.collective == Collective::AllGather
            ? std::vector<std::int64_t>{operation_.rows[index][member]}
            : operation_.split[member];
    const std::int64_t rows = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
    memory.input_shape.insert(memory.input_shape.begin(), rows);
    return memory;
  }
  if (operation_.collective == Collective::ReduceScatter && !tensor.shape.empty()) {
    const int size = static_cast<int>(program.members(operation_).size());
    const int member = static_cast<int>(member_of(rank_, program.members(operation_)));
    memory.output_shape[0] = scattered_rows(tensor.shape[0], size, member);
    for (int earlier = 0; earlier < member; ++earlier) {
      std::vector<std::int64_t> above = tensor.shape;
      above[0] = scattered_rows(tensor.shape[0], size, earlier);
      memory.output_offset += count_of(above) * element;
    }
  }
  if (!operation_.in_place && operation_.collective != Collective::Broadcast) {
    memory.output = std::make_unique<GuardedBytes>(count_of(memory.output_shape) * element, shift);
  }
  return memory;
}

TensorView OperationMemory::input(std::size_t tensor) {
  TensorMemory& memory = tensors_[tensor];
  TensorView view{memory.input->data(), operation_.tensors[tensor].dtype, memory.input_shape, {}};
  if (operation_.mistake == Mistake::NoMemory) view.data = nullptr;
  if (operation_.mistake == Mistake::CudaMemory) view.device.kind = DeviceKind::Cuda;
  if (operation_.mistake == Mistake::Scalar) view.shape.clear();
  return view;
}

TensorView OperationMemory::output(std::size_t tensor) {
  TensorMemory& memory = tensors_[tensor];
  std::byte* const data =
      memory.output ? memory.output->data() : memory.input->data() + memory.output_offset;
  TensorView view{data, operation_.tensors[tensor].dtype, memory.output_shape, {}};
  if (operation_.mistake == Mistake::NoOutput) view.data = nullptr;
  if (operation_.mistake == Mistake::OutputShape) view.shape.push_back(2);
  if (operation_.mistake == Mistake::OutputDType) {
    view.dtype = view.dtype == DType::Int8 ? DType::UInt8 : DType::Int8;
  }
  return view;
}

AllocateRows OperationMemory::allocate(std::size_t tensor) {
  return [this, tensor](const std::vector<std::int64_t>& rows) -> void* {
    TensorMemory& memory = tensors_[tensor];
    memory.rows = rows;
    std::size_t total = 0;
    for (const std::int64_t from : rows) total += static_cast<std::size_t>(from);
    const Tensor& type = operation_.tensors[tensor];
    memory.output = std::make_unique<GuardedBytes>(total * type.count() * size_of(type.dtype), 0);
    return memory.output->data();
  };
}

std::vector<std::byte> OperationMemory::result(std::size_t tensor) {
  TensorMemory& memory = tensors_[tensor];
  if (takes_rows(operation_)) {
    return memory.output ? memory.output->content() : std::vector<std::byte>();
  }
  const std::byte* const data = buffer_         ? buffer_->data() + operation_.offset_bytes
                                : memory.output ? memory.output->data()
                                                : memory.input->data() + memory.output_offset;
  return {data, data + output_bytes(tensor)};
}

std::size_t OperationMemory::output_bytes(std::size_t tensor) const {
  return count_of(tensors_[tensor].output_shape) * size_of(operation_.tensors[tensor].dtype);
}

std::string OperationMemory::damage() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    TensorMemory& memory = tensors_[i];
    const std::string which = "tensor " + std::to_string(i) + ": ";
    if (!memory.input->is_intact() || (memory.output && !memory.output->is_intact())) {
      return which + "something was written beside it";
    }
    std::vector<std::byte> now = memory.input->content();
    std::vector<std::byte> before = memory.original;
    if (operation_.collective == Collective::Broadcast) continue;
    if (!memory.output && !takes_rows(operation_)) {
      const auto cut = [&](std::vector<std::byte>& bytes) {
        const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(memory.output_offset);
        bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(output_bytes(i)));
      };
      cut(now);
      cut(before);
    }
    if (now != before) return which + "its input has changed";
  }
  return {};
}

std::shared_ptr<void> OperationMemory::make_owner() {
  return {this, [self = shared_from_this()](void*) {
            self->is_released_.store(true, std::memory_order_release);
          }};
}

}  // namespace kolo::programs
