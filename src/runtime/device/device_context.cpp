#include "runtime/device/device_context.hpp"

#include <algorithm>
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

std::size_t DeviceStaging::room_for(std::span<const std::size_t> sizes) {
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += rounded_up(size);
  return total;
}

/// By half at least, if there is memory on all ranks: tensors that grow slowly must not need a new
/// block each time. A rank that has found memory keeps it, whatever the others find.
Task DeviceStaging::grow(std::size_t needed) {
  for (const std::size_t bytes : {std::max(needed, room_ + room_ / 2), needed}) {
    std::string problem;
    try {
      if (bytes_ < bytes) {
        // The old one must not be freed while the GPU is in use.
        outgrown_.push_back(std::exchange(block_, gpu_.allocate(bytes)));
        bytes_ = bytes;
      }
    } catch (const BackendError& error) {
      problem = error.what();
    }
    const std::vector<std::size_t> own{bytes_};
    std::vector<std::size_t> all;
    co_await gather_numbers(set_, own, all);
    const auto least = std::ranges::min_element(all);
    if (*least >= needed) {
      room_ = *least;
      co_return;
    }
    if (bytes > needed) continue;
    const auto rank = static_cast<int>(least - all.begin());
    throw AgreedFailure{
        {ErrorKind::Backend, "process set " + set_.name + ": the GPU of " + set_.rank_text(rank) +
                                 " has no room for " + std::to_string(bytes) +
                                 " bytes, in which tensors are packed" +
                                 (rank == set_.communicator->rank() ? " (" + problem + ")" : "") +
                                 ". Leave some memory free on each GPU."}};
  }
}

std::vector<std::byte*> DeviceStaging::take(std::span<const std::size_t> sizes) const {
  std::vector<std::byte*> places;
  std::byte* next = block_.get();
  for (const std::size_t size : sizes) {
    places.push_back(next);
    next += rounded_up(size);
  }
  return places;
}

}  // namespace kolo::runtime
