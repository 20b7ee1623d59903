#include "support/gpu/fake_gpu.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/gpu/broadcast_value.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/check_vectors.hpp"
#include "support/gpu/fake_arithmetic.hpp"
#include "support/gpu/fake_device_communicator.hpp"

namespace kolo::test {
namespace {

ByteRange source_of(const comm::DeviceRun& run, DType from) {
  return {run.from, run.count * size_of(from)};
}

ByteRange target_of(const comm::DeviceRun& run, DType to) {
  return {run.to, run.count * size_of(to)};
}

/// Conversions in place need types of the same size.
bool is_valid_placement(const comm::DeviceRun& run, const comm::DeviceConversion& conversion) {
  const bool is_in_place = run.from == run.to && size_of(conversion.from) == size_of(conversion.to);
  return is_in_place || !overlap(source_of(run, conversion.from), target_of(run, conversion.to));
}

std::vector<ByteRange> ranges_of(const comm::DeviceVectors& vectors) {
  const std::size_t size = size_of(vectors.dtype);
  std::vector<ByteRange> ranges;
  for (std::size_t v = 0; v < static_cast<std::size_t>(vectors.vectors); ++v) {
    ranges.emplace_back(vectors.first + v * vectors.stride * size, vectors.count * size);
  }
  return ranges;
}

/// Agrees on the hub's group, which the first rank of `communicator` creates.
Task agree_on_group(Communicator& communicator, int tag, FakeGpuHub& hub, std::uint64_t& group) {
  if (communicator.rank() == 0) group = hub.make_group(communicator.size());
  co_await comm::broadcast_value(communicator, tag, group);
}

}  // namespace

void FakeGpu::launch(comm::DeviceStream stream, FakeKernel kernel) {
  hub_->count(rank_, &FakeGpuHub::Calls::kernels);
  hub_->kernel(rank_, stream, std::move(kernel));
}

void FakeGpu::convert(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion,
                      comm::DeviceStream stream) {
  check_conversion(conversion);
  FakeKernel kernel{.name = "convert " + std::string(name_of(conversion.from)) + " to " +
                            std::string(name_of(conversion.to))};
  bool is_valid = true;
  for (const comm::DeviceRun& run : runs) {
    kernel.reads.push_back(source_of(run, conversion.from));
    kernel.writes.push_back(target_of(run, conversion.to));
    is_valid = is_valid && is_valid_placement(run, conversion);
  }
  if (is_valid) {
    kernel.run = [runs = std::vector(runs.begin(), runs.end()), conversion] {
      for (const comm::DeviceRun& run : runs) convert_run(run, conversion);
    };
  } else {
    hub_->report("in place: '" + kernel.name + "' on rank " + std::to_string(rank_) +
                 " has its input and output overlap in another way than it may");
  }
  launch(stream, std::move(kernel));
}

void FakeGpu::fill(std::byte* to, std::size_t count, DType dtype, const comm::Scalar& element,
                   comm::DeviceStream stream) {
  launch(stream, {.name = "fill", .writes = {ByteRange(to, count * size_of(dtype))}, .run = [=] {
                    for (std::size_t i = 0; i < count; ++i) {
                      std::copy_n(element.begin(), size_of(dtype), to + i * size_of(dtype));
                    }
                  }});
}

void FakeGpu::add_up(const comm::DeviceVectors& vectors, comm::DeviceFactors factors, std::byte* to,
                     comm::DeviceStream stream) {
  ops::check_vectors(vectors);
  FakeKernel kernel{.name = "sum of vectors",
                    .reads = ranges_of(vectors),
                    .writes = {ByteRange(to, vectors.count * size_of(vectors.dtype))},
                    .run = [=] { add_up_vectors(vectors, factors, to); }};
  for (const ByteRange vector : kernel.reads) {
    if (!overlap(vector, kernel.writes.front())) continue;
    hub_->report("in place: '" + kernel.name + "' on rank " + std::to_string(rank_) +
                 " has its output overlap a vector");
  }
  launch(stream, std::move(kernel));
}

std::shared_ptr<comm::Gpu> FakeGpus::open(int index) {
  if (index < 0 || index >= count_) {
    throw BackendError("open: expected a GPU below " + std::to_string(count_) + ", got " +
                       std::to_string(index));
  }
  return std::make_shared<FakeGpu>(hub_, rank_, index);
}

Task FakeGpus::connect(Communicator& communicator, int tag, comm::Gpu& gpu,
                       std::unique_ptr<comm::DeviceCommunicator>& made) {
  std::uint64_t group = 0;
  co_await agree_on_group(communicator, tag, *hub_, group);
  auto joining = std::make_unique<FakeDeviceCommunicator>(
      hub_, group, communicator.rank(), communicator.size(), dynamic_cast<FakeGpu&>(gpu).rank());
  co_await *joining;
  made = std::move(joining);
}

}  // namespace kolo::test
