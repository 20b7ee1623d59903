#include "torch/sharding/use_order.hpp"

#include <algorithm>
#include <utility>

namespace kolo::tensors {
namespace {

/// Longer steps, such as an evaluation over a whole data set, are not remembered.
constexpr std::size_t kLongest = std::size_t{1} << 16;

}  // namespace

void UseOrder::use(std::size_t unit) {
  if (current_.size() < kLongest) current_.push_back(unit);
  is_as_expected_ = is_as_expected_ && position_ < expected_.size() && expected_[position_] == unit;
  if (is_as_expected_) ++position_;
}

void UseOrder::end_step() {
  expected_ = std::exchange(current_, {});
  if (expected_.size() == kLongest) expected_.clear();
  position_ = 0;
  is_as_expected_ = true;
}

std::span<const std::size_t> UseOrder::ahead() const {
  if (!is_as_expected_) return {};
  return std::span(expected_).subspan(position_);
}

std::size_t UseOrder::uses_until(std::size_t unit) const {
  const auto units = ahead();
  const auto found = std::ranges::find(units, unit);
  return found == units.end() ? kNever : static_cast<std::size_t>(found - units.begin());
}

}  // namespace kolo::tensors
