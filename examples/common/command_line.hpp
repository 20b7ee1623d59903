#pragma once

#include <optional>
#include <string>

#include <CLI/App.hpp>

#include "kolo/device.hpp"
#include "kolo/shard.hpp"

namespace examples {

/// How a program ends that does not go on after its command line.
struct Exit {
  int code = 0;      ///< 0 after --help
  std::string text;  ///< to be shown once, not by every rank
};

/// Parses; the values land where `app`'s options say. Returns how to end after --help or an error.
std::optional<Exit> parse_command_line(CLI::App& app, int argc, const char* const* argv);

/// --shard, which leaves `shard` alone where it is not given.
void add_shard_option(CLI::App& app, std::optional<kolo::Shard>& shard);

/// --device, cpu unless given.
void add_device_option(CLI::App& app, kolo::DeviceKind& device);

/// Prints what `exit` has to say on the one rank that `speaks`, and returns its code.
int leave(const Exit& exit, bool speaks);

}  // namespace examples
