#include "bench/workload/values.hpp"

#include <bit>
#include <cstring>

namespace bench {
namespace {

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

}  // namespace

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

}  // namespace bench
