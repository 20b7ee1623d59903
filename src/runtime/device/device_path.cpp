#include "runtime/device/device_path.hpp"

#include <numeric>
#include <vector>

namespace kolo::runtime {

std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::size_t count_of(std::span<const ReductionItem> items) {
  std::size_t count = 0;
  for (const ReductionItem& item : items) count += item.type->count();
  return count;
}

void copy(const DevicePath& path, std::span<const std::byte> from, std::byte* to) {
  const comm::DeviceRun run{from.data(), to, from.size()};
  path.gpu.convert({&run, 1}, {DType::UInt8, DType::UInt8}, path.stream);
}

void pack(const DevicePath& path, std::span<const ReductionItem> items,
          comm::DeviceConversion conversion, std::byte* buffer) {
  std::vector<comm::DeviceRun> runs;
  for (const ReductionItem& item : items) {
    const std::size_t count = item.type->count();
    runs.push_back({item.memory->input, buffer, count});
    buffer += count * size_of(conversion.to);
  }
  path.gpu.convert(runs, conversion, path.stream);
}

void unpack(const DevicePath& path, const std::byte* buffer, comm::DeviceConversion conversion,
            std::span<const ReductionItem> items) {
  std::vector<comm::DeviceRun> runs;
  for (const ReductionItem& item : items) {
    const std::size_t count = item.type->count();
    runs.push_back({buffer, item.memory->output, count});
    buffer += count * size_of(conversion.from);
  }
  path.gpu.convert(runs, conversion, path.stream);
}

}  // namespace kolo::runtime
