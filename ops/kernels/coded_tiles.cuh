// How the threads of one GPU block encode, decode and add up a tile, for all codecs.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/kernels/small_block_codecs.cuh"
#include "ops/kernels/sparse_codecs.cuh"

namespace kolo::ops {

/// The memory that a block needs to encode.
template <base::CodecKind kKind>
using EncoderTile =
    std::conditional_t<kKind == base::CodecKind::Int8 || kKind == base::CodecKind::OneBit,
                       SmallTile, SparseTile>;

template <base::CodecKind kKind, class Team>
__host__ __device__ void encode_tile(const Team& team, EncoderTile<kKind>& tile,
                                     const comm::DeviceCodec& codec, const CodedPart& part,
                                     DType from) {
  const TileInput input = input_of(part, from);
  std::byte* const payloads = part.run.to + part.payload;
  if constexpr (kKind == base::CodecKind::Int8) {
    encode_int8(team, tile, input, payloads, codec.stride());
  } else if constexpr (kKind == base::CodecKind::OneBit) {
    encode_one_bit(team, tile, input, payloads, codec.stride());
  } else {
    const auto kept = static_cast<std::uint32_t>(codec.format.kept(part.count, codec.terms));
    if (codec.format.is_random(codec.terms)) {
      encode_random(team, tile, input, kept, payloads);
    } else {
      encode_largest(team, tile, input, kept, payloads);
    }
  }
}

template <base::CodecKind kKind, class Team>
__host__ __device__ void decode_tile(const Team& team, const comm::DeviceCodec& codec,
                                     const CodedPart& part, DType to, float factor) {
  const TileOutput output{part.run.to, to, part.first, part.count, factor};
  const std::byte* const payloads = part.run.from + part.payload;
  if constexpr (kKind == base::CodecKind::Int8 || kKind == base::CodecKind::OneBit) {
    decode_small<kKind>(team, output, payloads, codec.stride());
  } else {
    decode_sparse(team, codec.format, codec.terms, output, payloads);
  }
}

template <base::CodecKind kKind, class Team>
__host__ __device__ void add_tile(const Team& team, const base::CodecFormat& format,
                                  const comm::CodedInputs& inputs, std::uint64_t which,
                                  float* sum) {
  const comm::DeviceCodec codec{format};
  const CodedPart part = part_at({.count = inputs.count}, codec, which);
  const TileSum tile{inputs, part, codec.run_bytes(inputs.count), sum};
  if constexpr (kKind == base::CodecKind::Int8 || kKind == base::CodecKind::OneBit) {
    add_small<kKind>(team, tile, codec.stride());
  } else {
    add_sparse(team, format, tile);
  }
}

/// Calls `visit` with the kind as a std::integral_constant.
template <class Visit>
void visit_kind(base::CodecKind kind, const Visit& visit) {
  using enum base::CodecKind;
  switch (kind) {
    case Int8: return visit(std::integral_constant<base::CodecKind, Int8>());
    case OneBit: return visit(std::integral_constant<base::CodecKind, OneBit>());
    case TopK: return visit(std::integral_constant<base::CodecKind, TopK>());
    case RandomK: return visit(std::integral_constant<base::CodecKind, RandomK>());
  }
}

}  // namespace kolo::ops
