#include "common/bar_panel.hpp"

namespace examples {
namespace {

constexpr double kTop = 70;
constexpr double kHeight = BarPanel::kBottom - kTop;
constexpr double kRoom = 1.15;  // above the highest bar, for its label
constexpr double kGap = 2;

}  // namespace

BarPanel::BarPanel(Drawing& drawing, double left, const std::string& title, double highest)
    : drawing_(drawing),
      left_(left),
      scale_(highest > 0 ? kHeight / (kRoom * highest) : 0),
      right_(left) {
  drawing.text(left, kTop - 12, title);
}

double BarPanel::bar(double width, double value, const std::string& colour,
                     const std::string& label) {
  drawing_.bar(right_, y(value), width - kGap, value * scale_, colour);
  const double middle = right_ + (width - kGap) / 2;
  drawing_.text(middle, y(value) - 4, label, "text-anchor=\"middle\" font-size=\"8\"");
  right_ += width;
  return middle;
}

void BarPanel::level(double value, double end, const std::string& stroke) {
  drawing_.line(left_, y(value), end, y(value), stroke);
}

}  // namespace examples
