#include "common/exit.hpp"

#include <cstdio>
#include <sstream>

#include <CLI/CLI.hpp>

namespace examples {
namespace {

constexpr int kWrongUsage = 2;

}  // namespace

std::optional<Exit> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    const int code = app.exit(error, text, text);
    return Exit{code == 0 ? 0 : kWrongUsage, text.str()};
  }
  return std::nullopt;
}

int leave(const Exit& exit, bool prints) {
  if (prints) std::fputs(exit.text.c_str(), exit.code == 0 ? stdout : stderr);
  return exit.code;
}

}  // namespace examples
