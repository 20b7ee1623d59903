#include "common/chart.hpp"

#include <iomanip>

namespace examples {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '&')
      result += "&amp;";
    else if (letter == '<')
      result += "&lt;";
    else if (letter == '>')
      result += "&gt;";
    else
      result += letter;
  }
  return result;
}

constexpr double kTop = 70;
constexpr double kHeight = BarPanel::kBottom - kTop;
constexpr double kRoom = 1.15;  // above the highest bar, for its label
constexpr double kGap = 2;

}  // namespace

Drawing::Drawing() { out_ << std::fixed << std::setprecision(1); }

void Drawing::text(double x, double y, const std::string& text, const std::string& more) {
  out_ << "<text x=\"" << x << "\" y=\"" << y << "\" " << more << '>' << escaped(text)
       << "</text>\n";
}

void Drawing::line(double x1, double y1, double x2, double y2, const std::string& more) {
  out_ << "<line x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2 << "\" y2=\"" << y2 << "\" "
       << more << "/>\n";
}

void Drawing::curve(const std::vector<std::pair<double, double>>& points, const std::string& more) {
  out_ << "<polyline fill=\"none\" " << more << " points=\"";
  for (const auto& [x, y] : points) out_ << x << ',' << y << ' ';
  out_ << "\"/>\n";
}

void Drawing::dot(double x, double y, const std::string& colour) {
  out_ << "<circle cx=\"" << x << "\" cy=\"" << y << "\" r=\"3\" fill=\"" << colour << "\"/>\n";
}

void Drawing::bar(double x, double y, double width, double height, const std::string& colour) {
  out_ << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height
       << "\" fill=\"" << colour << "\"/>\n";
}

std::string Drawing::finish(double width, double height) const {
  std::ostringstream whole;
  whole << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
           "font-family=\"sans-serif\" font-size=\"13\" viewBox=\"0 0 "
        << width << ' ' << height << "\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        << out_.str() << "</svg>\n";
  return whole.str();
}

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
