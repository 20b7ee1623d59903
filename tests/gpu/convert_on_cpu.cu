#include "gpu/convert_on_cpu.hpp"
#include "ops/kernels/device_convert.cuh"

namespace kolo::test {

void convert_on_cpu(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion,
                    std::uint64_t blocks) {
  while (!runs.empty()) {
    const ops::ConvertTable table = ops::take_runs(runs, blocks);
    ops::visit_conversion(conversion, [&](auto convert) {
      for (std::uint64_t block = 0; block < table.blocks(); ++block) {
        for (std::uint32_t thread = 0; thread < ops::kConvertThreads; ++thread) {
          ops::convert_block(table, convert, block, thread);
        }
      }
    });
  }
}

}  // namespace kolo::test
