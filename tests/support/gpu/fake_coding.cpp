#include "support/gpu/fake_coding.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/convert.hpp"
#include "compression/registry.hpp"
#include "ops/steps/coded_pieces.hpp"

namespace kolo::test {
namespace {

std::shared_ptr<const Codec> codec_of(const base::CodecFormat& format) {
  using enum base::CodecKind;
  switch (format.kind) {
    case TopK: return compression::top_k("top_k", format.fraction);
    case RandomK: return compression::random_k("random_k", format.fraction);
    case Int8: return {std::shared_ptr<void>(), &compression::int8()};
    case OneBit: break;
  }
  return {std::shared_ptr<void>(), &compression::one_bit()};
}

/// Calls `visit(first element, length, bytes of the payloads before it)` for each block.
template <class Visit>
void for_each_block(const comm::DeviceCodec& codec, std::size_t count, const Visit& visit) {
  const std::size_t block = codec.format.block();
  for (std::size_t i = 0; i * block < count; ++i) {
    visit(i * block, std::min(block, count - i * block), i * codec.stride());
  }
}

std::vector<float> load(DType dtype, const std::byte* elements, std::size_t first,
                        std::size_t count) {
  std::vector<float> values(count);
  base::convert(dtype, elements + first * size_of(dtype), DType::Float32, values.data(), count);
  return values;
}

}  // namespace

void encode_run(const comm::DeviceCodec& codec, const comm::CodedRun& run, DType from) {
  const auto on_cpu = codec_of(codec.format);
  for_each_block(codec, run.count, [&](std::size_t first, std::size_t length, std::size_t offset) {
    std::vector<float> values = load(from, run.from, first, length);
    std::vector<float> block(length);
    float* const residual = run.residual == nullptr ? nullptr : run.residual + first;
    ops::encode_with_residual(*on_cpu, values, residual, codec.terms, run.to + offset, block);
  });
}

void decode_run(const comm::DeviceCodec& codec, const comm::CodedRun& run, DType to,
                double factor) {
  const auto on_cpu = codec_of(codec.format);
  for_each_block(codec, run.count, [&](std::size_t first, std::size_t length, std::size_t offset) {
    std::vector<float> values(length);
    on_cpu->add_decoded(run.from + offset, codec.terms, values);
    base::convert(DType::Float32, values.data(), to, run.to + first * size_of(to), length, factor);
  });
}

void add_coded_inputs(const base::CodecFormat& format, const comm::CodedInputs& inputs,
                      float* sum) {
  const auto on_cpu = codec_of(format);
  const comm::DeviceCodec codec{format};
  std::fill_n(sum, inputs.count, 0.0F);
  const std::byte* payloads = inputs.payloads;
  for (int rank = 0; rank < inputs.ranks; ++rank) {
    if (rank == inputs.own) {
      const std::vector<float> own = load(inputs.dtype, inputs.elements, 0, inputs.count);
      for (std::size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
      continue;
    }
    for_each_block(codec, inputs.count,
                   [&](std::size_t first, std::size_t length, std::size_t offset) {
                     on_cpu->add_decoded(payloads + offset, 1, {sum + first, length});
                   });
    payloads += codec.run_bytes(inputs.count);
  }
  if (inputs.residual == nullptr) return;
  for (std::size_t i = 0; i < inputs.count; ++i) {
    sum[i] += inputs.residual[i];
    if (std::isfinite(sum[i])) inputs.residual[i] = 0.0F;
  }
}

}  // namespace kolo::test
