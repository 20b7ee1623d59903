#pragma once

#include <cstdint>

namespace kolo {

/// SplitMix64 (Steele et al., 2014): the same state gives the same numbers on every machine.
constexpr std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15;
  std::uint64_t mixed = state;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  return mixed ^ mixed >> 31;
}

}  // namespace kolo
