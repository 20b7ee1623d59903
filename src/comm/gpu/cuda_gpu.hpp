#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/gpu/gpu.hpp"

namespace kolo::comm {

/// A GPU of the CUDA runtime, in the context that all libraries of the process share.
class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(int index);

  int index() const override { return index_; }
  std::uint64_t id() const override { return id_; }
  std::shared_ptr<CUstream_st> make_stream() override;
  std::shared_ptr<CUevent_st> make_event() override;
  std::shared_ptr<CUevent_st> make_timer() override;
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  bool is_capturing(DeviceStream stream) override;
  void record(DeviceEvent event, DeviceStream stream) override;
  void wait(DeviceStream stream, DeviceEvent event) override;
  bool has_passed(DeviceEvent event) override;
  double seconds_between(DeviceEvent first, DeviceEvent last) override;
  std::shared_ptr<void> mark(const std::string& name) override;

  // In ops/kernels, beside their kernels: this level must not include them.
  void convert(std::span<const DeviceRun> runs, DeviceConversion conversion,
               DeviceStream stream) override;
  void fill(std::byte* to, std::size_t count, DType dtype, const Scalar& element,
            DeviceStream stream) override;
  void add_up(const DeviceVectors& vectors, DeviceFactors factors, std::byte* to,
              DeviceStream stream) override;

 private:
  int index_;
  std::uint64_t id_;
  std::uint64_t blocks_;  // of a launch, at most
};

}  // namespace kolo::comm
