#include <algorithm>
#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/drawing.hpp"
#include "compare/report.hpp"

namespace compare {
namespace {

using examples::Drawing;
using Json = nlohmann::ordered_json;

constexpr double kLeft = 40;
constexpr double kTop = 70;
constexpr double kPanelWidth = 340;
constexpr double kPanelHeight = 260;
constexpr double kBarWidth = 20;
constexpr double kGroupGap = 24;
constexpr double kRoom = 1.15;  // above the highest bar, for its label

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
  const double scale = kPanelHeight / (kRoom * highest);
  const double bottom = kTop + kPanelHeight;
  drawing.text(left, kTop - 12, panel.title);
  double x = left;
  for (const Json& model : models) {
    const double begin = x;
    std::size_t number = 0;
    for (const Json& mode : model["modes"]) {
      const double value = mode[panel.key].get<double>();
      drawing.bar(x, bottom - value * scale, kBarWidth - 2, value * scale,
                  Drawing::kColours[number++]);
      std::array<char, 16> label{};
      std::snprintf(label.data(), label.size(), "%.2f", value);
      drawing.text(x + kBarWidth / 2, bottom - value * scale - 4, label.data(),
                   "text-anchor=\"middle\" font-size=\"8\"");
      x += kBarWidth;
    }
    drawing.text((begin + x) / 2, bottom + 18, model["model"].get<std::string>(),
                 "text-anchor=\"middle\" font-size=\"11\"");
    x += kGroupGap;
  }
  drawing.line(left, bottom - scale, left + kPanelWidth - kGroupGap, bottom - scale,
               "stroke=\"#555555\" stroke-dasharray=\"4 4\"");
  drawing.line(left, bottom, left + kPanelWidth - kGroupGap, bottom, "stroke=\"#000000\"");
}

}  // namespace

std::string to_svg(const Json& models) {
  Drawing drawing;
  drawing.text(kLeft, 28,
               "Modes of sharding on " + std::to_string(models.front()["ranks"].get<int>()) +
                   " ranks, AdamW in fp32",
               "font-size=\"15\"");
  double left = kLeft;
  for (const Panel& panel : kPanels) {
    draw(drawing, panel, left, models);
    left += kPanelWidth;
  }
  double x = kLeft;
  std::size_t number = 0;
  for (const Json& mode : models.front()["modes"]) {
    drawing.bar(x, kTop + kPanelHeight + 40, 12, 12, Drawing::kColours[number++]);
    drawing.text(x + 18, kTop + kPanelHeight + 51, mode["shard"].get<std::string>());
    x += 110;
  }
  return drawing.finish(left, kTop + kPanelHeight + 70);
}

}  // namespace compare
