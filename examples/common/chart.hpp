#pragma once

#include <array>
#include <cstdio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// An SVG document that grows by one element at a time. `more` holds further attributes.
class Drawing {
 public:
  /// Okabe and Ito's colours, which the colour-blind can distinguish, too.
  static constexpr std::array<const char*, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                       "#e69f00", "#56b4e9", "#000000"};

  Drawing();
  void text(double x, double y, const std::string& text, const std::string& more = "");
  void line(double x1, double y1, double x2, double y2, const std::string& more);
  void curve(const std::vector<std::pair<double, double>>& points, const std::string& more);
  void dot(double x, double y, const std::string& colour);
  void bar(double x, double y, double width, double height, const std::string& colour);
  std::string finish(double width, double height) const;

 private:
  std::ostringstream out_;
};

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

/// Formats like printf; at most 255 characters.
template <class... Values>
std::string formatted(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

}  // namespace examples
