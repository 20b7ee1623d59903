#include "common/chart.hpp"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "compression/report.hpp"

namespace compression {
namespace {

using examples::BarPanel;
using examples::Drawing;
using examples::formatted;
using Json = nlohmann::ordered_json;

constexpr double kPanelGap = 40;
constexpr double kBarWidth = 30;
constexpr double kNameHeight = 110;

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
  BarPanel bars(drawing, left, panel.title, highest);
  for (const Json& one : cases) {
    const double value = one[panel.key].get<double>();
    const double middle =
        bars.bar(kBarWidth, value, colour, formatted(panel.format, value / panel.unit));
    const double y = BarPanel::kBottom + 14;
    const std::string place = std::to_string(middle) + " " + std::to_string(y);
    drawing.text(middle, y, one["case"].get<std::string>(),
                 "text-anchor=\"end\" font-size=\"11\" transform=\"rotate(-60 " + place + ")\"");
  }
  bars.level(0, bars.right(), "stroke=\"#000000\"");
}

}  // namespace

std::string to_svg(const Json& results) {
  const Json& cases = results["cases"];
  Drawing drawing;
  drawing.text(BarPanel::kLeft, 28,
               "Compression of gradients: GPT, preset " + results["preset"].get<std::string>() +
                   ", " + std::to_string(results["steps"].get<int>()) + " steps on " +
                   std::to_string(results["ranks"].get<int>()) + " ranks",
               "font-size=\"15\"");
  // Titles may be wider than a few bars.
  const double width = std::max(kBarWidth * static_cast<double>(cases.size()), 200.0);
  double left = BarPanel::kLeft;
  std::size_t number = 0;
  for (const Panel& panel : kPanels) {
    draw(drawing, panel, Drawing::kColours[number++], left, cases);
    left += width + kPanelGap;
  }
  return drawing.finish(left, BarPanel::kBottom + kNameHeight);
}

}  // namespace compression
