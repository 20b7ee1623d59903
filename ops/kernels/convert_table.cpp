#include "ops/kernels/convert_table.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "kolo/error.hpp"

namespace kolo::ops {
namespace {

// About as many elements as a GPU block converts in one iteration. Shares are multiples of it, so
// that all shares of an aligned run are aligned.
constexpr std::uint64_t kGrain = 2048;

constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t divisor) {
  return (value + divisor - 1) / divisor;
}

std::string pair_of(comm::DeviceConversion conversion) {
  return "GPU convert from " + std::string(name_of(conversion.from)) + " to " +
         std::string(name_of(conversion.to));
}

bool is_aligned(const std::byte* address, DType dtype) {
  return std::bit_cast<std::uintptr_t>(address) % size_of(dtype) == 0;
}

}  // namespace

ConvertTable take_runs(std::span<const comm::DeviceRun>& runs, std::uint64_t blocks) {
  ConvertTable table;
  std::uint64_t elements = 0;
  while (!runs.empty() && table.runs < ConvertTable::kCapacity) {
    const comm::DeviceRun run = runs.front();
    runs = runs.subspan(1);
    if (run.count == 0) continue;
    elements += run.count;
    table.from[table.runs] = run.from;
    table.to[table.runs] = run.to;
    table.end[table.runs] = elements;
    ++table.runs;
  }
  table.share = std::max<std::uint64_t>(1, divide_up(divide_up(elements, blocks), kGrain)) * kGrain;
  return table;
}

void check_conversion(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion) {
  if (!is_convertible_on_gpu(conversion.from, conversion.to)) {
    throw InvalidArgument(pair_of(conversion) +
                          ": no such kernel; floating types convert among themselves, integers to "
                          "and from int64, int16 to and from int32");
  }
  if (conversion.divisor < 1 || (conversion.divisor != 1 && conversion.from != DType::Int64)) {
    throw InvalidArgument(pair_of(conversion) +
                          ": expected a divisor of 1, or a positive one from " + "int64, got " +
                          std::to_string(conversion.divisor));
  }
  for (const comm::DeviceRun& run : runs) {
    if (run.count == 0) continue;
    if (!is_aligned(run.from, conversion.from) || !is_aligned(run.to, conversion.to)) {
      throw InvalidArgument(pair_of(conversion) +
                            ": expected addresses of elements, got a run of " +
                            std::to_string(run.count) + " elements that lies between them");
    }
  }
}

}  // namespace kolo::ops
