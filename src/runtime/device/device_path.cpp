#include "runtime/device/device_path.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kolo/error.hpp"
#include "runtime/data/operation.hpp"

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

namespace {

constexpr std::size_t kAlignment = 256;

std::size_t rounded_up(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::size_t DeviceStaging::total(std::span<const std::size_t> sizes) {
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += rounded_up(size);
  return total;
}

/// Grows by half at least, if there is room on all ranks: tensors that grow slowly must not need a
/// new block each time. A rank that has found room keeps it while the others try for less.
Task DeviceStaging::make_room(std::span<const std::size_t> sizes) {
  const std::size_t needed = total(sizes);
  bool has_room = false;
  for (const std::size_t bytes : {std::max(needed, bytes_ + bytes_ / 2), needed}) {
    // Outgrown until the ranks agree: it must not be freed while the GPU is in use.
    std::string problem;
    try {
      if (!has_room) outgrown_.push_back(gpu_.allocate(bytes));
      has_room = true;
    } catch (const BackendError& error) {
      problem = error.what();
    }
    const std::vector<std::size_t> own{has_room ? std::size_t{0} : 1};
    std::vector<std::size_t> failed;
    co_await gather_numbers(path_, own, failed);
    const auto found = std::ranges::find(failed, 1U);
    if (found == failed.end()) {
      std::swap(block_, outgrown_.back());
      bytes_ = bytes;
      break;
    }
    if (bytes > needed) continue;
    const auto rank = static_cast<int>(found - failed.begin());
    throw AgreedFailure{
        {ErrorKind::Backend, "process set " + path_.name + ": the GPU of rank " +
                                 std::to_string(path_.world_rank(rank)) + " has no room for " +
                                 std::to_string(bytes) + " bytes, in which tensors are packed" +
                                 (rank == path_.communicator->rank() ? " (" + problem + ")" : "") +
                                 ". Leave some memory free on each GPU."}};
  }
}

void DeviceStaging::take(std::span<const std::size_t> sizes, std::span<std::byte*> places) const {
  std::byte* next = block_.get();
  for (std::size_t i = 0; i < sizes.size(); next += rounded_up(sizes[i++])) places[i] = next;
}

std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::size_t count_of(std::span<const ReductionItem> items) {
  std::size_t count = 0;
  for (const ReductionItem& item : items) count += item.type->count();
  return count;
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
