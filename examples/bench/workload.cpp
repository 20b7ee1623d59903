#include "bench/workload.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace bench {
namespace {

constexpr std::size_t kLineBytes = 64;

/// Appends `bytes` to a layout and returns their offset.
std::size_t take(Layout& layout, std::size_t bytes) {
  const std::size_t begin = layout.size_bytes;
  layout.size_bytes += (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  return begin;
}

using kolo::DType;

constexpr unsigned kHighest = 3;
constexpr int kRoot = 0;

// The two highest bits of a multiplicative hash, which change with any shift of the elements.
unsigned value_at(int rank, std::size_t index, unsigned highest) {
  const auto key = static_cast<std::uint64_t>(index) + static_cast<std::uint64_t>(rank) * 7919;
  return static_cast<unsigned>((key * 0x9e3779b97f4a7c15U) >> 62) & highest;
}

/// The bits of a small whole number in `dtype`.
std::uint64_t encode(DType dtype, unsigned number) {
  const auto single = std::bit_cast<std::uint32_t>(static_cast<float>(number));
  constexpr std::uint32_t kRebias = (127 - 15) << 10;  // from the exponents of float32 to float16
  switch (dtype) {
    case DType::Float16: return number == 0 ? 0 : (single >> 13) - kRebias;
    case DType::BFloat16: return single >> 16;
    case DType::Float32: return single;
    case DType::Float64: return std::bit_cast<std::uint64_t>(static_cast<double>(number));
    default: return number;
  }
}

/// The bits of all numbers from 0 to `ranks` times the highest input.
template <class Bits>
std::vector<Bits> table_of(DType dtype, int ranks) {
  std::vector<Bits> table;
  for (unsigned number = 0; number <= kHighest * static_cast<unsigned>(ranks); ++number) {
    table.push_back(static_cast<Bits>(encode(dtype, number)));
  }
  return table;
}

template <class Function>
auto with_bits(DType dtype, Function function) {
  switch (kolo::size_of(dtype)) {
    case 1: return function(std::uint8_t{});
    case 2: return function(std::uint16_t{});
    case 4: return function(std::uint32_t{});
    default: return function(std::uint64_t{});
  }
}

unsigned highest_of(DType dtype) { return dtype == DType::Bool ? 1 : kHighest; }

/// The expected output element `index` of a tensor whose inputs are numbered from `base`.
unsigned expected_at(const Workload& workload, std::size_t base, std::size_t count,
                     std::size_t index, int rank, int ranks) {
  const unsigned highest = highest_of(workload.dtype);
  const std::size_t own = static_cast<std::size_t>(rank) * count;
  const std::size_t first =
      base + index + (workload.operation == Operation::ReduceScatter ? own : 0);
  unsigned sum = 0;
  switch (workload.operation) {
    case Operation::AllReduce:
    case Operation::ReduceScatter:
      for (int peer = 0; peer < ranks; ++peer) sum += value_at(peer, first, highest);
      return sum;
    case Operation::Broadcast: return value_at(kRoot, first, highest);
    case Operation::AllGather:
      return value_at(static_cast<int>(index / count), base + index % count, highest);
    case Operation::AllToAll:
      return value_at(static_cast<int>(index / count), base + own + index % count, highest);
  }
  return 0;
}

std::size_t bytes_of(const Workload& workload, std::size_t elements) {
  return elements * kolo::size_of(workload.dtype);
}

constexpr std::align_val_t kPageBytes{4096};

std::shared_ptr<std::byte> allocate_written(std::size_t bytes) {
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(::operator new(bytes, kPageBytes)),
                                    [](std::byte* freed) { ::operator delete(freed, kPageBytes); });
  std::memset(memory.get(), 0, bytes);
  return memory;
}

}  // namespace

std::size_t input_count(Operation operation, std::size_t count, int ranks) {
  const bool is_for_each =
      operation == Operation::ReduceScatter || operation == Operation::AllToAll;
  return is_for_each ? count * static_cast<std::size_t>(ranks) : count;
}

std::size_t output_count(Operation operation, std::size_t count, int ranks) {
  const bool is_from_each = operation == Operation::AllGather || operation == Operation::AllToAll;
  return is_from_each ? count * static_cast<std::size_t>(ranks) : count;
}

std::size_t element_count(const Workload& workload, int ranks) {
  std::size_t elements = 0;
  for (const std::size_t count : workload.counts) {
    elements += std::max(input_count(workload.operation, count, ranks),
                         output_count(workload.operation, count, ranks));
  }
  return elements;
}

std::size_t size_bytes(const Workload& workload, int ranks) {
  return element_count(workload, ranks) * kolo::size_of(workload.dtype);
}

Workload workload_of(Operation operation, kolo::DType dtype, std::size_t bytes, int tensors,
                     int ranks) {
  const auto parts = static_cast<std::size_t>(tensors);
  const std::size_t unit = element_count({operation, dtype, {1}}, ranks);
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): there is a rank, so `unit` is not zero
  const std::size_t count = std::max<std::size_t>(bytes / kolo::size_of(dtype) / unit / parts, 1);
  return {operation, dtype, std::vector<std::size_t>(parts, count)};
}

double bus_factor(Operation operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case Operation::AllReduce: return 2 * others;
    case Operation::Broadcast: return ranks > 1 ? 1 : 0;
    default: return others;
  }
}

std::vector<Tensor> Layout::at(std::byte* memory) const {
  std::vector<Tensor> tensors;
  for (const Place& place : places) {
    tensors.push_back({memory + place.input, memory + place.output, place.count});
  }
  return tensors;
}

Layout plan_layout(const Workload& workload, bool in_place, int rank, int ranks) {
  const Operation operation = workload.operation;
  const std::size_t element = kolo::size_of(workload.dtype);
  Layout layout;
  for (const std::size_t count : workload.counts) {
    const std::size_t inputs = input_count(operation, count, ranks);
    const std::size_t outputs = output_count(operation, count, ranks);
    const std::size_t own_part = static_cast<std::size_t>(rank) * count * element;
    Layout::Place place{take(layout, inputs * element), 0, count};
    place.output = place.input;
    const bool is_apart = in_place ? !can_be_in_place(operation) : can_be_out_of_place(operation);
    if (is_apart) {
      place.output = take(layout, outputs * element);
    } else if (operation == Operation::AllGather) {
      take(layout, (outputs - inputs) * element);
      place.input += own_part;
    } else if (operation == Operation::ReduceScatter) {
      place.output += own_part;
    }
    layout.places.push_back(place);
  }
  return layout;
}

void write_inputs(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                  int ranks) {
  const Operation operation = workload.operation;
  const unsigned highest = highest_of(workload.dtype);
  std::size_t base = 0;
  for (const Tensor& tensor : tensors) {
    const std::size_t inputs = input_count(operation, tensor.count, ranks);
    std::memset(tensor.output, 0x55,
                bytes_of(workload, output_count(operation, tensor.count, ranks)));
    with_bits(workload.dtype, [&]<class Bits>(Bits) {
      const auto table = table_of<Bits>(workload.dtype, ranks);
      auto* const input = reinterpret_cast<Bits*>(tensor.input);
      if (operation == Operation::Broadcast && rank != kRoot) return;
      for (std::size_t i = 0; i < inputs; ++i) {
        input[i] = table[value_at(rank, base + i, highest)];
      }
    });
    base += inputs;
  }
}

std::uint64_t count_wrong(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                          int ranks) {
  std::uint64_t wrong = 0;
  std::size_t base = 0;
  for (const Tensor& tensor : tensors) {
    with_bits(workload.dtype, [&]<class Bits>(Bits) {
      const auto table = table_of<Bits>(workload.dtype, ranks);
      const auto* const output = reinterpret_cast<const Bits*>(tensor.output);
      const std::size_t outputs = output_count(workload.operation, tensor.count, ranks);
      for (std::size_t i = 0; i < outputs; ++i) {
        wrong += output[i] != table[expected_at(workload, base, tensor.count, i, rank, ranks)];
      }
    });
    base += input_count(workload.operation, tensor.count, ranks);
  }
  return wrong;
}

GrowingBuffer::GrowingBuffer() : GrowingBuffer(allocate_written) {}

GrowingBuffer::GrowingBuffer(Allocate allocate) : allocate_(std::move(allocate)) {}

std::byte* GrowingBuffer::reserve(std::size_t bytes) {
  if (bytes > size_bytes_) {
    size_bytes_ = 0;
    memory_.reset();
    memory_ = allocate_(bytes);
    size_bytes_ = bytes;
  }
  return memory_.get();
}

}  // namespace bench
