#pragma once

#include <array>
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

}  // namespace examples
