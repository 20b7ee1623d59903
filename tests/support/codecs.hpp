#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "compression/registry.hpp"
#include "kolo/compression.hpp"

namespace kolo::test {

/// All built-in codecs, one for each of `fractions` if it has a fraction.
inline std::vector<Compression> all_codecs(const std::vector<std::string>& fractions = {"0.2"}) {
  const compression::Registry registry;
  std::vector<Compression> codecs;
  for (const std::string& name : registry.names()) {
    const std::size_t colon = name.find(':');
    if (colon != name.npos) {
      for (const std::string& fraction : fractions) {
        codecs.push_back(Compression::named(name.substr(0, colon + 1) + fraction));
      }
    } else if (registry.find_codec(name) != nullptr) {
      codecs.push_back(Compression::named(name));
    }
  }
  return codecs;
}

/// Bytes in which a codec sends the sum of `terms` inputs of `elements`, which are whole blocks.
/// codecs_test knows those of a block.
inline std::uint64_t coded_bytes(const Compression& compression, std::size_t elements,
                                 int terms = 1) {
  const compression::Registry registry;
  const Codec& codec = *registry.find_codec(compression.name());
  return elements / codec.block() * codec.payload_bytes(codec.block(), terms);
}

}  // namespace kolo::test
