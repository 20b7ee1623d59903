#pragma once

#include <optional>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

#include "kolo/shard.hpp"
#include "kolo/tensor_view.hpp"

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

/// Accepts multiples of `divisor`.
CLI::Validator multiple_of(int divisor);

/// Adds --shard; without it `shard` is unchanged.
void add_shard_option(CLI::App& app, std::optional<kolo::Shard>& shard);

/// Adds --device, by default cpu.
void add_device_option(CLI::App& app, kolo::DeviceKind& device);

/// Adds --efficiency, a flag that may have a number; without it `rounds` is unchanged.
CLI::Option* add_efficiency_option(CLI::App& app, int& rounds);

}  // namespace examples
