#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace gpt {

/// The windows of the held-out text on which a model is tested.
struct EvaluationWindows {
  std::vector<std::size_t> starts{};
  std::size_t in_training = 0;  ///< how many of `starts` occur in the training text
  std::size_t left_out = 0;     ///< others, left out because they occur there
};

/// For each window of `length` bytes of `text` that begins at one of `starts`: whether it occurs
/// anywhere in `training`. In one pass over `training`, by a rolling hash of 64 bits: a window that
/// occurs is always found; one that does not is reported with a probability of 2^-64 per byte and
/// window.
std::vector<bool> occur_in(std::string_view training, std::string_view text,
                           std::span<const std::size_t> starts, std::size_t length);

/// At most `most` windows of `length` bytes that do not overlap, spread evenly over `held_out`,
/// without those that occur in `training`. If all of them do, all are kept.
EvaluationWindows evaluation_windows(std::string_view training, std::string_view held_out,
                                     std::size_t length, std::size_t most);

}  // namespace gpt
