#include <nlohmann/json.hpp>

#include "common/formatted.hpp"
#include "compare/report.hpp"

namespace compare {
namespace {

using examples::formatted;
using Json = nlohmann::ordered_json;

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

}  // namespace

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

}  // namespace compare
