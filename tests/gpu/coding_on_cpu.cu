#include <cstring>
#include <memory>

#include "gpu/coding_on_cpu.hpp"
#include "ops/kernels/coded_tiles.cuh"

namespace kolo::test {
namespace {

using namespace ops;

struct CpuTeam {
  bool is_backwards;

  template <class Work>
  __host__ __device__ void each(const Work& work) const {
    for (std::uint32_t i = 0; i < kCodecThreads; ++i) {
      work(is_backwards ? kCodecThreads - 1 - i : i);
    }
  }
  __host__ __device__ void add(std::uint32_t& counter, std::uint32_t n) const { counter += n; }
};

/// Filled with arbitrary bytes, like uninitialized shared memory.
template <class Tile>
std::unique_ptr<Tile> make_tile() {
  auto tile = std::make_unique<Tile>();
  std::memset(static_cast<void*>(tile.get()), 0xA5, sizeof(Tile));
  return tile;
}

}  // namespace

void CodingOnCpu::encode(const comm::DeviceCodec& codec, std::span<const comm::CodedRun> runs,
                         DType from) {
  visit_kind(codec.format.kind, [&](auto kind) {
    const auto shared = make_tile<EncoderTile<kind()>>();
    while (!runs.empty()) {
      const CodedTable table = take_coded_runs(runs, codec.format);
      for (std::uint64_t tile = 0; tile < table.tiles(); ++tile) {
        const CodedPart part = part_of(table, codec, tile);
        encode_tile<kind()>(CpuTeam{is_backwards_}, *shared, codec, part, from);
      }
    }
  });
}

void CodingOnCpu::decode(const comm::DeviceCodec& codec, std::span<const comm::CodedRun> runs,
                         DType to, double factor) {
  visit_kind(codec.format.kind, [&](auto kind) {
    while (!runs.empty()) {
      const CodedTable table = take_coded_runs(runs, codec.format);
      for (std::uint64_t tile = 0; tile < table.tiles(); ++tile) {
        decode_tile<kind()>(CpuTeam{is_backwards_}, codec, part_of(table, codec, tile), to,
                            static_cast<float>(factor));
      }
    }
  });
}

void CodingOnCpu::add_coded(const base::CodecFormat& format, const comm::CodedInputs& inputs,
                            float* sum) {
  visit_kind(format.kind, [&](auto kind) {
    const std::uint64_t length = tile_elements(format);
    for (std::uint64_t tile = 0; tile * length < inputs.count; ++tile) {
      add_tile<kind()>(CpuTeam{is_backwards_}, format, inputs, tile, sum);
    }
  });
}

}  // namespace kolo::test
