#include "runtime/device/rank_gpu.hpp"

#include <string>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::runtime {

comm::Gpu& RankGpu::use(int index) {
  const std::lock_guard lock(opening_);
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
  const std::lock_guard lock(opening_);
  return gpu_ == nullptr ? local_rank_ % gpus_.count() : gpu_->index();
}

void RankGpu::release_stream() {
  const std::lock_guard lock(opening_);
  stream_.reset();
}

}  // namespace kolo::runtime
