#include "bench/report/config_table.hpp"

#include <cstdlib>

#include "kolo/config.hpp"

namespace bench {
namespace {

std::string or_empty(const std::string& text) { return text.empty() ? "empty" : text; }

}  // namespace

std::string config_table() {
  std::string text = "Kolo's knobs: variables of the environment, the same on all ranks.\n";
  for (const kolo::ConfigEntry& knob : kolo::describe(kolo::Config::from_environment())) {
    const bool is_set = std::getenv(knob.variable.c_str()) != nullptr;
    text += '\n' + knob.variable + " = " + or_empty(knob.value) +
            (is_set ? "  (from the environment)\n" : "  (default)\n");
    text += "  " + knob.help + '\n';
    text +=
        "  " + knob.unit + "; " + knob.range + "; default " + or_empty(knob.default_value) + '\n';
  }
  return text;
}

}  // namespace bench
