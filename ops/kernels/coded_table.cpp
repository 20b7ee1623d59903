#include "ops/kernels/coded_table.hpp"

#include <bit>
#include <string>

#include "kolo/error.hpp"

namespace kolo::ops {
namespace {

void check(DType dtype, const std::byte* elements, const std::byte* payloads) {
  const std::string text = "GPU codec of " + std::string(name_of(dtype)) + ": expected ";
  if (!is_floating(dtype)) throw InvalidArgument(text + "a floating type");
  if (std::bit_cast<std::uintptr_t>(elements) % size_of(dtype) != 0) {
    throw InvalidArgument(text + "addresses of elements, got some that lie between them");
  }
  if (std::bit_cast<std::uintptr_t>(payloads) % sizeof(float) != 0) {
    throw InvalidArgument(text + "payloads that begin at 4-byte words, got others");
  }
}

}  // namespace

CodedTable take_coded_runs(std::span<const comm::CodedRun>& runs, const base::CodecFormat& format) {
  CodedTable table;
  std::uint64_t tiles = 0;
  while (!runs.empty() && table.runs < CodedTable::kCapacity) {
    const comm::CodedRun& run = runs.front();
    runs = runs.subspan(1);
    if (run.count == 0) continue;
    tiles += (run.count + tile_elements(format) - 1) / tile_elements(format);
    table.run[table.runs] = run;
    table.end[table.runs] = tiles;
    ++table.runs;
  }
  return table;
}

void check_encoding(std::span<const comm::CodedRun> runs, DType from) {
  for (const comm::CodedRun& run : runs) check(from, run.from, run.to);
}

void check_decoding(std::span<const comm::CodedRun> runs, DType to) {
  for (const comm::CodedRun& run : runs) check(to, run.to, run.from);
}

void check_coded_inputs(const comm::CodedInputs& inputs) {
  check(inputs.dtype, inputs.elements, inputs.payloads);
}

}  // namespace kolo::ops
