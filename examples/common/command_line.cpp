#include "common/command_line.hpp"

#include <cstdio>
#include <sstream>
#include <string>

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

CLI::Validator multiple_of(int divisor) {
  const auto accept = [divisor](const std::string& text) {
    if (std::stoi(text) % divisor == 0) return std::string();
    return "must be a multiple of " + std::to_string(divisor) + ": " + text;
  };
  return {accept, ""};
}

void add_shard_option(CLI::App& app, std::optional<kolo::Shard>& shard) {
  app.add_option_function<std::string>(
         "--shard", [&shard](const std::string& name) { shard = kolo::shard_named(name); },
         "what is sharded over the ranks; default: KOLO_SHARD, or none")
      ->check(CLI::IsMember({"none", "optimizer", "gradients", "full"}));
}

void add_device_option(CLI::App& app, kolo::DeviceKind& device) {
  app.add_option_function<std::string>(
         "--device",
         [&device](const std::string& name) {
           device = name == "cuda" ? kolo::DeviceKind::Cuda : kolo::DeviceKind::Cpu;
         },
         "where tensors lie: cpu (default), or cuda, one GPU for each rank")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

CLI::Option* add_efficiency_option(CLI::App& app, int& rounds) {
  return app
      .add_flag("--efficiency{9}", rounds,
                "instead, measure the speed with communication relative to that without, in this "
                "many rounds of blocks; fewer than six give no 95 % interval")
      ->check(CLI::Range(1, 1000));
}

}  // namespace examples
