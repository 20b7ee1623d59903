#include <nlohmann/json.hpp>

#include "common/chart.hpp"
#include "compression/report.hpp"

namespace compression {
namespace {

using examples::formatted;
using Json = nlohmann::ordered_json;

double number(const Json& object, const char* key) { return object[key].get<double>(); }

}  // namespace

std::string to_table(const Json& results) {
  std::string table =
      formatted("GPT, preset %s, %.2f M parameters, %d ranks, %d steps\n",
                results["preset"].get<std::string>().c_str(), number(results, "parameters") / 1e6,
                results["ranks"].get<int>(), results["steps"].get<int>());
  table += formatted("PowerSGD of rank %d from step %d on; %g %% for top_k and random_k\n",
                     results["rank"].get<int>(), results["start_step"].get<int>(),
                     100 * number(results, "fraction"));
  table += formatted("%-13s  %10s  %7s  %12s  %12s  %11s  %6s\n", "case", "loss", "to none",
                     "sent a step", "by formula", "time a step", "x none");
  for (const Json& one : results["cases"]) {
    table += formatted("%-13s  %10.4f  %+6.2f%%  %9.1f KB  %9.1f KB  %8.2f ms  %6.3f\n",
                       one["case"].get<std::string>().c_str(), number(one, "validation_loss"),
                       number(one, "loss_difference_percent"), number(one, "bytes_per_step") / 1e3,
                       number(one, "formula_bytes") / 1e3, number(one, "step_ms_median"),
                       number(one, "ratio_to_none"));
  }
  return table;
}

}  // namespace compression
