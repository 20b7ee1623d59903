#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kolo::tensors {

/// The order in which a step uses units, learnt from the previous step.
class UseOrder {
 public:
  /// A unit is used that differs from the last one.
  void use(std::size_t unit);
  /// The step has ended: the next one is expected to have the same order.
  void end_step();

  /// The units that are expected next, in order; empty in the first step, and once a step differs
  /// from the last.
  std::span<const std::size_t> ahead() const;
  /// How many uses of other units come before the next one of `unit`; kNever if none is expected.
  std::size_t uses_until(std::size_t unit) const;
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

 private:
  std::vector<std::size_t> expected_;
  std::vector<std::size_t> current_;
  std::size_t position_ = 0;  // in expected_
  bool is_as_expected_ = true;
};

}  // namespace kolo::tensors
