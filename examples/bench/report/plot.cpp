#include "bench/report/plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "common/drawing.hpp"

namespace bench {
namespace {

using examples::Drawing;

constexpr double kLeft = 90;
constexpr double kTop = 50;
constexpr double kWidth = 620;
constexpr double kHeight = 440;
constexpr double kLegendLeft = kLeft + kWidth + 20;
constexpr double kLegendStep = 20;
constexpr double kTotalWidth = 1010;

struct Line {
  bool is_baseline = false;
  std::vector<std::pair<double, double>> points{};
};

/// Maps values to positions on a logarithmic scale.
class Axis {
 public:
  Axis(double low, double high, double begin, double end)
      : low_(std::log(low)), scale_((end - begin) / (std::log(high) - low_)), begin_(begin) {}
  double at(double value) const { return begin_ + (std::log(value) - low_) * scale_; }

 private:
  double low_;
  double scale_;
  double begin_;
};

/// The range of all values, widened to powers of a base.
struct Range {
  double low = std::numeric_limits<double>::max();
  double high = 0;

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void widen(double base) {
    const double step = std::log(base);
    low = std::pow(base, std::floor(std::log(low) / step));
    high = std::pow(base, std::ceil(std::log(high) / step));
    if (high <= low) high = low * base;
  }
};

std::string scaled(double value, double base, const std::array<const char*, 4>& units) {
  std::size_t unit = 0;
  for (; value >= base && unit + 1 < units.size(); ++unit) value /= base;
  std::ostringstream text;
  text << std::setprecision(4) << value << ' ' << units[unit];
  return text.str();
}

std::string name_of(const Row& row) {
  std::string name = row.label.algorithm;
  if (row.label.reference.empty()) name += ", " + row.label.placement;
  if (!row.label.in_place) name += ", out of place";
  if (row.label.compression != "none") name += ", " + row.label.compression;
  return name;
}

constexpr double kBytesStep = 4;
constexpr double kTimeStep = 10;

void draw_axes(Drawing& drawing, const Axis& x, const Range& bytes, const Axis& y,
               const Range& times) {
  const std::string grid = "stroke=\"#dddddd\"";
  for (double value = bytes.low; value <= bytes.high * 1.01; value *= kBytesStep) {
    drawing.line(x.at(value), kTop, x.at(value), kTop + kHeight, grid);
    drawing.text(x.at(value), kTop + kHeight + 20, scaled(value, 1024, {"B", "KB", "MB", "GB"}),
                 "text-anchor=\"middle\" font-size=\"11\"");
  }
  for (double value = times.low; value <= times.high * 1.01; value *= kTimeStep) {
    drawing.line(kLeft, y.at(value), kLeft + kWidth, y.at(value), grid);
    drawing.text(kLeft - 8, y.at(value) + 4, scaled(value, 1000, {"µs", "ms", "s", "ks"}),
                 "text-anchor=\"end\"");
  }
  drawing.text(kLeft + kWidth / 2, kTop + kHeight + 45, "bytes", "text-anchor=\"middle\"");
  drawing.text(0, 0, "median time of a call",
               "text-anchor=\"middle\" transform=\"translate(22 " +
                   std::to_string(kTop + kHeight / 2) + ") rotate(-90)\"");
}

void draw_line(Drawing& drawing, const std::string& name, const Line& line, std::size_t number,
               const Axis& x, const Axis& y) {
  const std::string colour = Drawing::kColours[number % Drawing::kColours.size()];
  const bool is_second_time = number >= Drawing::kColours.size();
  const std::string stroke = "stroke=\"" + colour + "\" stroke-width=\"2\"" +
                             (line.is_baseline ? " stroke-dasharray=\"7 4\""
                              : is_second_time ? " stroke-dasharray=\"2 3\""
                                               : "");
  std::vector<std::pair<double, double>> places;
  for (const auto& [bytes, time] : line.points) places.emplace_back(x.at(bytes), y.at(time));
  drawing.curve(places, stroke);
  for (const auto& [left, top] : places) drawing.dot(left, top, colour);
  const double height = kTop + 10 + kLegendStep * static_cast<double>(number);
  drawing.line(kLegendLeft, height, kLegendLeft + 28, height, stroke);
  drawing.text(kLegendLeft + 36, height + 4, name, "font-size=\"12\"");
}

}  // namespace

std::string to_svg(const Report& report) {
  std::vector<std::string> names;
  std::map<std::string, Line> lines;
  Range bytes;
  Range times;
  for (const Row& row : report.rows) {
    const std::string name = name_of(row);
    if (!lines.contains(name)) names.push_back(name);
    Line& line = lines[name];
    line.is_baseline = !row.label.reference.empty();
    line.points.emplace_back(static_cast<double>(row.bytes), row.median_us);
    bytes.add(static_cast<double>(row.bytes));
    times.add(row.median_us);
  }
  bytes.widen(kBytesStep);
  times.widen(kTimeStep);
  const Axis x(bytes.low, bytes.high, kLeft, kLeft + kWidth);
  const Axis y(times.low, times.high, kTop + kHeight, kTop);
  Drawing drawing;
  const std::string head = table_head(report);
  drawing.text(kLeft, 28, head.substr(0, head.find_first_of(";\n")), "font-size=\"15\"");
  draw_axes(drawing, x, bytes, y, times);
  for (std::size_t i = 0; i < names.size(); ++i) {
    draw_line(drawing, names[i], lines[names[i]], i, x, y);
  }
  const double legend = kTop + kLegendStep * static_cast<double>(names.size() + 1);
  return drawing.finish(kTotalWidth, std::max(kTop + kHeight + 60, legend));
}

}  // namespace bench
