#include "gpt/windows.hpp"

#include <algorithm>

namespace gpt {

WindowSampler::WindowSampler(std::size_t text_bytes, std::size_t length, std::uint64_t seed)
    : choices_(text_bytes - length + 1), generator_(seed) {}

std::vector<std::size_t> WindowSampler::next(int rank, int ranks, int rows) {
  std::vector<std::size_t> mine;
  for (int owner = 0; owner < ranks; ++owner) {
    for (int row = 0; row < rows; ++row) {
      // Not std::uniform_int_distribution, which differs between standard libraries.
      const auto start = static_cast<std::size_t>(generator_() % choices_);
      if (owner == rank) mine.push_back(start);
    }
  }
  return mine;
}

void WindowSampler::skip(int batches, int ranks, int rows) {
  generator_.discard(static_cast<unsigned long long>(batches) *
                     static_cast<unsigned long long>(ranks) *
                     static_cast<unsigned long long>(rows));
}

std::vector<std::size_t> spread_windows(std::size_t text_bytes, std::size_t length,
                                        std::size_t most) {
  const std::size_t count = std::min(text_bytes / length, most);
  std::vector<std::size_t> starts(count);
  for (std::size_t i = 0; i < count; ++i) starts[i] = text_bytes / count * i;
  return starts;
}

}  // namespace gpt
