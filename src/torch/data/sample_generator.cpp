#include "kolo/torch/sample_generator.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include "base/random.hpp"

namespace kolo {

at::Generator sample_generator(std::uint64_t seed, std::int64_t epoch, std::size_t index) {
  std::uint64_t mixed = next_random(seed) ^ static_cast<std::uint64_t>(epoch);
  mixed = next_random(mixed) ^ index;
  return at::make_generator<at::CPUGeneratorImpl>(next_random(mixed));
}

}  // namespace kolo
