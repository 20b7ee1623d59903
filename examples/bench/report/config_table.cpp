#include "bench/report/config_table.hpp"

#include <cstdlib>

#include "kolo/config.hpp"

namespace bench {
namespace {

std::string or_empty(const std::string& text) { return text.empty() ? "empty" : text; }

}  // namespace

std::string config_table() {
  std::string text = "Kolo's settings: variables of the environment, the same on all ranks.\n";
  for (const kolo::ConfigEntry& setting : kolo::describe(kolo::Config::from_environment())) {
    const bool is_set = std::getenv(setting.variable.c_str()) != nullptr;
    text += '\n' + setting.variable + " = " + or_empty(setting.value) +
            (is_set ? "  (from the environment)\n" : "  (default)\n");
    text += "  " + setting.help + '\n';
    text += "  " + setting.unit + "; " + setting.range + "; default " +
            or_empty(setting.default_value) + '\n';
  }
  return text;
}

}  // namespace bench
