#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gpt {

/// The starts of random batches' windows in a text.
///
/// Every rank draws the starts of the whole batch from the same generator and takes its own rows,
/// so N ranks with `rows` each see what one rank with N * rows sees.
class WindowSampler {
 public:
  /// Windows of `length` bytes in a text of `text_bytes` >= `length`.
  WindowSampler(std::size_t text_bytes, std::size_t length, std::uint64_t seed);

  /// The next batch: the starts of this rank's rows.
  std::vector<std::size_t> next(int rank, int ranks, int rows);

  /// Skips the next `batches` batches.
  void skip(int batches, int ranks, int rows);

 private:
  std::size_t choices_;
  std::mt19937_64 generator_;
};

/// Starts of at most `most` windows of `length` bytes that do not overlap, spread evenly over a
/// text of `text_bytes` >= `length`.
std::vector<std::size_t> spread_windows(std::size_t text_bytes, std::size_t length,
                                        std::size_t most);

}  // namespace gpt
