#pragma once

#include <optional>
#include <string>

#include <CLI/App.hpp>

namespace examples {

/// The exit of a program that ends after parsing its command line.
struct Exit {
  int code = 0;      ///< 0 after --help
  std::string text;  ///< to be printed once, not by every rank
};

/// Parses the command line into the variables of `app`'s options. Returns the exit after --help or
/// an error.
std::optional<Exit> parse_command_line(CLI::App& app, int argc, const char* const* argv);

/// Prints the text of `exit` on the one rank that `prints`, and returns its code.
int leave(const Exit& exit, bool prints);

}  // namespace examples
