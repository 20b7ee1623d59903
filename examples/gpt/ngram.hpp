#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace gpt {

/// Byte n-gram models of a text, orders 1 to 3: what a language model must beat.
///
/// Interpolated absolute discounting: the same discount is subtracted from the count of every seen
/// n-gram, and what this frees in a context is distributed as in the next shorter context, down to
/// the uniform distribution. The discount is n1 / (n1 + 2 n2), where n1 and n2 count the n-grams
/// seen once and twice (Ney, Essen and Kneser 1994).
class NgramModel {
 public:
  static constexpr int kMaxOrder = 3;

  explicit NgramModel(std::string_view text);

  /// P(next | the last order - 1 bytes of `before`). If `before` is shorter, the order is lowered.
  /// Sums to one over `next`, and is never zero.
  double probability(std::string_view before, unsigned char next, int order) const;

  /// Mean of -ln P in nats a byte over the windows [start + 1, start + length) of `text`: the
  /// bytes that a model sees as targets.
  double cross_entropy(std::string_view text, std::span<const std::size_t> starts,
                       std::size_t length, int order) const;

 private:
  struct Level {
    std::vector<std::uint32_t> counts;     // of n-grams
    std::vector<std::uint32_t> totals;     // of their contexts
    std::vector<std::uint16_t> followers;  // different bytes seen after a context
    double discount = 0;
  };

  static Level count(std::string_view text, int order);

  std::array<Level, kMaxOrder> levels_;  // index: order - 1
};

}  // namespace gpt
