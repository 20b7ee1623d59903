#include "compare/report.hpp"

#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "common/chart.hpp"

namespace compare {
namespace {

using examples::BarPanel;
using examples::Drawing;
using examples::formatted;
using Json = nlohmann::ordered_json;

constexpr int kMaxBlocks = 1024;   // of the largest model
constexpr int kFastestGrowth = 4;  // of the search, so that no guess takes all memory

constexpr double kRequiredSaving = 0.55;
constexpr double kLargerModels = 1.7;

double number(const Json& object, const char* key) { return object[key].get<double>(); }

std::string row(const Json& mode) {
  return formatted("%-9s  %8.1f MB  %5.2f  %8.1f ms  %5.3f (%.3f to %.3f)  %8.2f M  %5.2f\n",
                   mode["shard"].get<std::string>().c_str(), number(mode, "peak_bytes") / 1e6,
                   number(mode, "memory_to_none"), number(mode, "step_ms_median"),
                   number(mode, "ratio_to_none"), number(mode, "ratio_low"),
                   number(mode, "ratio_high"), number(mode, "largest_parameters") / 1e6,
                   number(mode, "largest_to_none"));
}

const char* answer(bool is_kept) { return is_kept ? "yes" : "no"; }

/// Whether a mode is no slower than none, as far as its interval tells.
const char* is_no_slower(const Json& mode) {
  if (number(mode, "ratio_high") <= 1) return "yes";
  return number(mode, "ratio_low") > 1 ? "no" : "cannot be told apart";
}

std::string claims(const Json& mode) {
  const double less = 1 - number(mode, "memory_to_none");
  const double larger = number(mode, "largest_to_none");
  return formatted("  %s: %.0f %% less memory (at least %.0f %%: %s), ",
                   mode["shard"].get<std::string>().c_str(), 100 * less, 100 * kRequiredSaving,
                   answer(less >= kRequiredSaving)) +
         formatted("%.3f of the time (no slower: %s), ", number(mode, "ratio_to_none"),
                   is_no_slower(mode)) +
         formatted("models %.2f times as large (at least %.1f: %s)\n", larger, kLargerModels,
                   answer(larger >= kLargerModels));
}

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

Largest find_largest(const std::function<MemoryUse(int blocks)>& measure, std::size_t budget) {
  const auto allowed = static_cast<double>(budget);
  Largest largest;
  int too_large = kMaxBlocks + 1;
  double last_bytes = 0;
  int last_blocks = 0;
  int blocks = 1;
  while (largest.blocks + 1 < too_large) {
    const MemoryUse use = measure(blocks);
    const double bytes = use.peak_bytes();
    if (bytes <= allowed) {
      largest = {blocks, use};
    } else {
      too_large = blocks;
    }
    const double bytes_of_a_block = (bytes - last_bytes) / (blocks - last_blocks);
    const double guess = bytes_of_a_block > 0 ? blocks + (allowed - bytes) / bytes_of_a_block
                                              : kFastestGrowth * blocks;
    last_bytes = bytes;
    last_blocks = blocks;
    const int highest = std::min(too_large - 1, kFastestGrowth * std::max(largest.blocks, 1));
    blocks = std::clamp(static_cast<int>(std::floor(std::min<double>(guess, kMaxBlocks))),
                        largest.blocks + 1, std::max(highest, largest.blocks + 1));
  }
  return largest;
}

std::string to_table(const Json& model) {
  std::string table = formatted(
      "%s, %.2f M parameters in %d blocks, %d ranks; largest model within %.0f MB of a rank\n",
      model["model"].get<std::string>().c_str(), number(model, "parameters") / 1e6,
      model["blocks"].get<int>(), model["ranks"].get<int>(), number(model, "budget_bytes") / 1e6);
  table += formatted("%-9s  %11s  %5s  %11s  %-22s  %10s  %5s\n", "mode", "peak memory", "x none",
                     "time a step", "x none, 95 % interval", "largest", "x none");
  for (const Json& mode : model["modes"]) table += row(mode);
  return table + claims(model["modes"].back());
}

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
