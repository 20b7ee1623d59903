#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/thread_worlds.hpp"
#include "kolo/algorithm.hpp"
#include "support/gpu/fake_gpu.hpp"
#include "support/gpu/thread_gpus.hpp"

namespace kolo::test {
namespace {

/// As a kernel of the fake GPU.
void combine_in_kernel(FakeGpuHub& hub, int rank, DType dtype, ReduceOp op,
                       const std::vector<const std::byte*>& inputs, std::byte* to,
                       std::size_t count, comm::DeviceStream stream) {
  const std::size_t bytes = count * size_of(dtype);
  FakeKernel kernel{.name = "combine", .writes = {ByteRange(to, bytes)}, .run = [=] {
                      std::byte* const outputs[] = {to};
                      combine(dtype, {.op = op}, inputs, outputs, count);
                    }};
  for (const std::byte* const input : inputs) kernel.reads.emplace_back(input, bytes);
  hub.kernel(rank, stream, std::move(kernel));
}

}  // namespace

Setting on_one_gpu(Setting setting) {
  setting.config.share_gpu = true;
  setting.network.gpus_per_rank = 1;
  setting.network.is_one_gpu = true;
  setting.network.make_gpus = [groups = std::make_shared<ThreadGroups>()](FakeWorld& world) {
    const int rank = world.topology().rank;
    auto combine = [hub = world.hub(), rank](auto... arguments) {
      combine_in_kernel(*hub, rank, std::move(arguments)...);
    };
    return std::make_unique<ThreadGpus>(
        std::make_shared<FakeGpus>(world.hub(), rank, world.topology().local_size), groups,
        std::move(combine));
  };
  return setting;
}

}  // namespace kolo::test
