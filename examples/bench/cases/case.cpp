#include "bench/cases/case.hpp"

namespace bench {
namespace {

constexpr std::size_t kLineBytes = 64;

/// Appends `bytes` to a layout and returns their offset.
std::size_t take(Layout& layout, std::size_t bytes) {
  const std::size_t begin = layout.size_bytes;
  layout.size_bytes += (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  return begin;
}

}  // namespace

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

}  // namespace bench
