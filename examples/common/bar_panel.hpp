#pragma once

#include <string>

#include "common/drawing.hpp"

namespace examples {

/// A panel of a chart: bars side by side on one scale, with a title above.
class BarPanel {
 public:
  static constexpr double kLeft = 40;  ///< of a chart's first panel
  static constexpr double kBottom = 330;

  /// @param highest the highest value
  BarPanel(Drawing& drawing, double left, const std::string& title, double highest);

  /// Draws the next bar, and its label above it.
  /// @return the middle of the bar
  double bar(double width, double value, const std::string& colour, const std::string& label);
  void skip(double width) { right_ += width; }
  double right() const { return right_; }
  /// Draws a horizontal line at `value`, to the right up to `end`.
  void level(double value, double end, const std::string& stroke);

 private:
  double y(double value) const { return kBottom - value * scale_; }

  Drawing& drawing_;
  double left_;
  double scale_;
  double right_;  // of the bars so far
};

}  // namespace examples
