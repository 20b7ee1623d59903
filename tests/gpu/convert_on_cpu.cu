#include "comm/gpu/convert_kernel.cuh"
#include "gpu/convert_on_cpu.hpp"

namespace kolo::test {

void convert_on_cpu(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion,
                    std::uint64_t blocks) {
  while (!runs.empty()) {
    const comm::ConvertTable table = comm::take_runs(runs, blocks);
    comm::visit_conversion(conversion, [&](auto convert) {
      for (std::uint64_t block = 0; block < table.blocks(); ++block) {
        for (std::uint32_t thread = 0; thread < comm::kConvertThreads; ++thread) {
          comm::convert_block(table, convert, block, thread);
        }
      }
    });
  }
}

}  // namespace kolo::test
