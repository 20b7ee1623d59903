#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/registry.hpp"
#include "kolo/compression.hpp"

/// The codecs of compression/, for all tests that take each of them. codecs_test fails if the
/// registry has another one.
namespace kolo::test {

struct TestedCodec {
  Compression compression;
  double error;       ///< of an element at most, as a part of the largest element of its block
  double loss_error;  ///< of a model trained with error feedback; about twice what is measured
};

inline const std::vector<TestedCodec> kTestedCodecs{
    {Compression::int8(), 0.5 / 127 * (1 + 1e-3), 1e-3},  // half a unit, and float's rounding
    // From here on an element may be left out, or be on the wrong side of its side's mean.
    {Compression::one_bit(), 1, 0.06},
    {Compression::top_k(0.1), 1, 0.025},
    {Compression::random_k(0.2), 1, 0.05},
};

/// Bytes in which a codec sends the sum of `terms` inputs of `elements`, which are whole blocks.
/// codecs_test knows those of a block.
inline std::uint64_t coded_bytes(const Compression& compression, std::size_t elements,
                                 int terms = 1) {
  const compression::Registry registry;
  const Codec& codec = *registry.find_codec(compression.name());
  return elements / codec.block() * codec.payload_bytes(codec.block(), terms);
}

}  // namespace kolo::test
