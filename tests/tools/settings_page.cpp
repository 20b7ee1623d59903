// Prints docs/settings.md from the table of settings.
#include <iostream>
#include <string>

#include "kolo/config.hpp"

namespace {

/// Formats a table cell.
std::string cell(const std::string& text) { return text.empty() ? "" : "`" + text + "`"; }

}  // namespace

int main() {
  std::cout
      << "# Settings\n\n"
         "Environment variables that a `kolo::Runtime` reads when it starts. All but\n"
         "`KOLO_LOG_LEVEL` and `KOLO_MPI_LIBRARY` must be equal on all ranks; `kolo::Config` has "
         "one field per variable. "
         "`kolo-bench --config` prints the values in effect,\nand rank 0 warns if a variable's "
         "name looks like a "
         "misspelt setting, or was a setting.\n\n"
         "Durations are written `250ms`, `10s`, `5min`; sizes `65536`, `256KB`, `64MB` "
         "(powers of 1024).\n\n"
         "| variable | default | range | meaning |\n|---|---|---|---|\n";
  for (const kolo::ConfigEntry& entry : kolo::describe(kolo::Config())) {
    std::cout << "| `" << entry.variable << "` | " << cell(entry.default_value) << " | "
              << entry.range << " | " << entry.help << " |\n";
  }
}
