#include "runtime/device/device_path.hpp"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kolo/error.hpp"

namespace kolo::runtime {

comm::Gpu& RankGpu::use(int index) {
  const Lock lock(opening_);
  if (gpu_ == nullptr) {
    std::shared_ptr<comm::Gpu> opened = gpus_.open(index);
    stream_ = opened->make_stream();
    gpu_ = std::move(opened);
  }
  if (gpu_->index() == index) return *gpu_;
  throw InvalidArgument("the tensor lies on cuda:" + std::to_string(index) +
                        ", but this rank uses cuda:" + std::to_string(gpu_->index()) +
                        " in this process set. A rank has one GPU: move the tensor there.");
}

int RankGpu::index() {
  const Lock lock(opening_);
  return gpu_ == nullptr ? local_rank_ % gpus_.count() : gpu_->index();
}

void RankGpu::release_stream() {
  const Lock lock(opening_);
  stream_.reset();
}

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
