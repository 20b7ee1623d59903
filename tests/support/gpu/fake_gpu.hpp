#pragma once

#include <memory>
#include <span>
#include <utility>

#include "comm/gpu/gpu.hpp"
#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

/// A rank's GPU.
class FakeGpu final : public comm::Gpu {
 public:
  FakeGpu(std::shared_ptr<FakeGpuHub> hub, int rank, int index)
      : hub_(std::move(hub)), rank_(rank), index_(index) {}

  int rank() const { return rank_; }
  int index() const override { return index_; }
  std::uint64_t id() const override {
    return hub_->is_one_gpu() ? 1 : static_cast<std::uint64_t>(rank_) + 1;
  }

  std::shared_ptr<CUstream_st> make_stream() override { return hub_->make_stream(rank_); }
  std::shared_ptr<CUevent_st> make_event() override { return hub_->make_event(rank_); }
  std::shared_ptr<CUevent_st> make_timer() override { return hub_->make_event(rank_); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    if (!hub_->has_room(rank_, bytes)) comm::release_cached_memory();
    return hub_->allocate(rank_, bytes);
  }

  bool is_capturing(comm::DeviceStream stream) override {
    return hub_->is_capturing(rank_, stream);
  }
  void record(comm::DeviceEvent event, comm::DeviceStream stream) override {
    hub_->count(rank_, &FakeGpuHub::Calls::records);
    hub_->record(rank_, event, stream);
  }
  void wait(comm::DeviceStream stream, comm::DeviceEvent event) override {
    hub_->count(rank_, &FakeGpuHub::Calls::waits);
    hub_->wait(rank_, stream, event);
  }
  bool has_passed(comm::DeviceEvent event) override {
    hub_->await_query(rank_);
    return hub_->has_passed(rank_, event);
  }
  /// A millisecond for each operation between them on the stream.
  double seconds_between(comm::DeviceEvent first, comm::DeviceEvent last) override {
    return 1e-3 * static_cast<double>(hub_->steps_between(first, last));
  }
  std::shared_ptr<void> mark(const std::string& name) override { return hub_->mark(rank_, name); }

  void convert(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion,
               comm::DeviceStream stream) override;
  void fill(std::byte* to, std::size_t count, DType dtype, const comm::Scalar& element,
            comm::DeviceStream stream) override;
  void add_up(const comm::DeviceVectors& vectors, comm::DeviceFactors factors, std::byte* to,
              comm::DeviceStream stream) override;

 private:
  void launch(comm::DeviceStream stream, FakeKernel kernel);

  std::shared_ptr<FakeGpuHub> hub_;
  int rank_;
  int index_;
};

/// The GPUs of a rank's node. The hub has one GPU per rank, whatever index the rank picks.
class FakeGpus final : public comm::Gpus {
 public:
  FakeGpus(std::shared_ptr<FakeGpuHub> hub, int rank, int count)
      : hub_(std::move(hub)), rank_(rank), count_(count) {}

  int count() override { return count_; }
  std::shared_ptr<comm::Gpu> open(int index) override;
  Task connect(Communicator& communicator, int tag, comm::Gpu& gpu,
               std::unique_ptr<comm::DeviceCommunicator>& made) override;

 private:
  std::shared_ptr<FakeGpuHub> hub_;
  int rank_;
  int count_;
};

}  // namespace kolo::test
