#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "common/bar_panel.hpp"
#include "common/drawing.hpp"
#include "common/formatted.hpp"
#include "compare/report.hpp"

namespace compare {
namespace {

using examples::BarPanel;
using examples::Drawing;
using examples::formatted;
using Json = nlohmann::ordered_json;

constexpr double kPanelWidth = 340;
constexpr double kBarWidth = 20;
constexpr double kGroupGap = 24;

/// One quantity of all models, relative to none.
struct Panel {
  const char* title;
  const char* key;
};
constexpr std::array kPanels{Panel{"peak memory of a rank, x none", "memory_to_none"},
                             Panel{"time of a step, x none", "ratio_to_none"},
                             Panel{"largest model, x none", "largest_to_none"}};

void draw(Drawing& drawing, const Panel& panel, double left, const Json& models) {
  double highest = 1;
  for (const Json& model : models) {
    for (const Json& mode : model["modes"]) {
      highest = std::max(highest, mode[panel.key].get<double>());
    }
  }
  BarPanel bars(drawing, left, panel.title, highest);
  for (const Json& model : models) {
    const double begin = bars.right();
    std::size_t number = 0;
    for (const Json& mode : model["modes"]) {
      const double value = mode[panel.key].get<double>();
      bars.bar(kBarWidth, value, Drawing::kColours[number++], formatted("%.2f", value));
    }
    drawing.text((begin + bars.right()) / 2, BarPanel::kBottom + 18,
                 model["model"].get<std::string>(), "text-anchor=\"middle\" font-size=\"11\"");
    bars.skip(kGroupGap);
  }
  const double end = left + kPanelWidth - kGroupGap;
  bars.level(1, end, "stroke=\"#555555\" stroke-dasharray=\"4 4\"");
  bars.level(0, end, "stroke=\"#000000\"");
}

}  // namespace

std::string to_svg(const Json& models) {
  Drawing drawing;
  drawing.text(BarPanel::kLeft, 28,
               "Modes of sharding on " + std::to_string(models.front()["ranks"].get<int>()) +
                   " ranks, AdamW in fp32",
               "font-size=\"15\"");
  double left = BarPanel::kLeft;
  for (const Panel& panel : kPanels) {
    draw(drawing, panel, left, models);
    left += kPanelWidth;
  }
  double x = BarPanel::kLeft;
  std::size_t number = 0;
  for (const Json& mode : models.front()["modes"]) {
    drawing.bar(x, BarPanel::kBottom + 40, 12, 12, Drawing::kColours[number++]);
    drawing.text(x + 18, BarPanel::kBottom + 51, mode["shard"].get<std::string>());
    x += 110;
  }
  return drawing.finish(left, BarPanel::kBottom + 70);
}

}  // namespace compare
