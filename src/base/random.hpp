#pragma once

#include <cstdint>

namespace kolo {

/// Each draw adds this to the state.
inline constexpr std::uint64_t kRandomStep = 0x9E3779B97F4A7C15;

/// SplitMix64 (Steele et al., 2014): the same state gives the same numbers on every machine.
constexpr std::uint64_t next_random(std::uint64_t& state) {
  state += kRandomStep;
  std::uint64_t mixed = state;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  return mixed ^ mixed >> 31;
}

/// `state` after `draws` numbers have been drawn.
constexpr std::uint64_t state_after(std::uint64_t state, std::uint64_t draws) {
  return state + draws * kRandomStep;
}

}  // namespace kolo
