#include "gpt/ngram.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {
namespace {

constexpr std::size_t kBytes = 256;

// The last `length` bytes of `text` as one number.
std::size_t index_of(std::string_view text, std::size_t length) {
  std::size_t index = 0;
  for (const char byte : text.substr(text.size() - length)) {
    index = index * kBytes + static_cast<unsigned char>(byte);
  }
  return index;
}

}  // namespace

NgramModel::NgramModel(std::string_view text) {
  for (int order = 1; order <= kMaxOrder; ++order) {
    levels_[static_cast<std::size_t>(order - 1)] = count(text, order);
  }
}

NgramModel::Level NgramModel::count(std::string_view text, int order) {
  const auto length = static_cast<std::size_t>(order);
  std::size_t contexts = 1;
  for (std::size_t i = 1; i < length; ++i) contexts *= kBytes;
  Level level{.counts = std::vector<std::uint32_t>(contexts * kBytes),
              .totals = std::vector<std::uint32_t>(contexts),
              .followers = std::vector<std::uint16_t>(contexts)};
  for (std::size_t end = length; end <= text.size(); ++end) {
    ++level.counts[index_of(text.substr(0, end), length)];
  }
  double once = 0;
  double twice = 0;
  for (std::size_t i = 0; i < level.counts.size(); ++i) {
    const std::uint32_t seen = level.counts[i];
    if (seen == 0) continue;
    level.totals[i / kBytes] += seen;
    ++level.followers[i / kBytes];
    once += seen == 1 ? 1 : 0;
    twice += seen == 2 ? 1 : 0;
  }
  // Without n-grams seen once the formula would give nothing to the unseen.
  level.discount = std::clamp(once > 0 ? once / (once + 2 * twice) : 0.0, 0.01, 0.99);
  return level;
}

double NgramModel::probability(std::string_view before, unsigned char next, int order) const {
  double p = 1.0 / static_cast<double>(kBytes);
  const std::size_t longest = std::min(static_cast<std::size_t>(order - 1), before.size());
  for (std::size_t length = 0; length <= longest; ++length) {
    const Level& level = levels_[length];
    const std::size_t context = index_of(before, length);
    const double total = level.totals[context];
    if (total == 0) break;  // longer contexts are unseen as well
    const double kept = std::max(level.counts[context * kBytes + next] - level.discount, 0.0);
    p = (kept + level.discount * level.followers[context] * p) / total;
  }
  return p;
}

double NgramModel::cross_entropy(std::string_view text, std::span<const std::size_t> starts,
                                 std::size_t length, int order) const {
  double nats = 0;
  for (const std::size_t start : starts) {
    for (std::size_t i = start + 1; i < start + length; ++i) {
      nats -= std::log(probability(text.substr(0, i), static_cast<unsigned char>(text[i]), order));
    }
  }
  return nats / static_cast<double>(starts.size() * (length - 1));
}

}  // namespace gpt
