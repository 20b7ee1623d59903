#include <algorithm>
#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/drawing.hpp"
#include "compression/report.hpp"

namespace compression {
namespace {

using examples::Drawing;
using Json = nlohmann::ordered_json;

constexpr double kLeft = 40;
constexpr double kTop = 70;
constexpr double kPanelHeight = 260;
constexpr double kPanelGap = 40;
constexpr double kBarWidth = 30;
constexpr double kNameHeight = 110;
constexpr double kRoom = 1.15;  // above the highest bar, for its label

struct Panel {
  const char* title;
  const char* key;
  double unit;
  const char* format;
};
constexpr std::array kPanels{
    Panel{"validation loss, nats/byte", "validation_loss", 1, "%.3f"},
    Panel{"sent by a rank in a step, KB", "bytes_per_step", 1e3, "%.0f"},
    Panel{"time of a step, ms", "step_ms_median", 1, "%.1f"},
};

void draw(Drawing& drawing, const Panel& panel, const char* colour, double left,
          const Json& cases) {
  double highest = 0;
  for (const Json& one : cases) highest = std::max(highest, one[panel.key].get<double>());
  const double scale = highest > 0 ? kPanelHeight / (kRoom * highest) : 0;
  const double bottom = kTop + kPanelHeight;
  drawing.text(left, kTop - 12, panel.title);
  double x = left;
  for (const Json& one : cases) {
    const double value = one[panel.key].get<double>();
    drawing.bar(x, bottom - value * scale, kBarWidth - 4, value * scale, colour);
    std::array<char, 32> label{};
    std::snprintf(label.data(), label.size(), panel.format, value / panel.unit);
    const double middle = x + kBarWidth / 2 - 2;
    drawing.text(middle, bottom - value * scale - 4, label.data(),
                 "text-anchor=\"middle\" font-size=\"9\"");
    const std::string place = std::to_string(middle) + " " + std::to_string(bottom + 14);
    drawing.text(middle, bottom + 14, one["case"].get<std::string>(),
                 "text-anchor=\"end\" font-size=\"11\" transform=\"rotate(-60 " + place + ")\"");
    x += kBarWidth;
  }
  drawing.line(left, bottom, x, bottom, "stroke=\"#000000\"");
}

}  // namespace

std::string to_svg(const Json& results) {
  const Json& cases = results["cases"];
  Drawing drawing;
  drawing.text(kLeft, 28,
               "Compression of gradients: GPT, preset " + results["preset"].get<std::string>() +
                   ", " + std::to_string(results["steps"].get<int>()) + " steps on " +
                   std::to_string(results["ranks"].get<int>()) + " ranks",
               "font-size=\"15\"");
  // Titles may be wider than a few bars.
  const double width = std::max(kBarWidth * static_cast<double>(cases.size()), 200.0);
  double left = kLeft;
  std::size_t number = 0;
  for (const Panel& panel : kPanels) {
    draw(drawing, panel, Drawing::kColours[number++], left, cases);
    left += width + kPanelGap;
  }
  return drawing.finish(left, kTop + kPanelHeight + kNameHeight);
}

}  // namespace compression
