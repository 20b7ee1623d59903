// Feeds lines "NAME=value" as the environment to Config. Beyond "no crash":
//   - a rejected value throws InvalidArgument, whose text begins with the variable;
//   - an accepted configuration can be printed and set again, with the same meaning.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include "fuzz/fuzz_target.hpp"
#include "kolo/config.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"

namespace kolo::fuzz {
namespace {

/// Replaces the process's environment for the duration of a call.
class Environment {
 public:
  explicit Environment(std::vector<std::string> lines) : lines_(std::move(lines)) {
    for (std::string& line : lines_) pointers_.push_back(line.data());
    pointers_.push_back(nullptr);
    before_ = environ;
    environ = pointers_.data();
  }
  ~Environment() { environ = before_; }
  Environment(const Environment&) = delete;  // restored once
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::string> lines_;
  std::vector<char*> pointers_;
  char** before_;
};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::vector<std::string> described(const Config& config) {
  std::vector<std::string> lines;
  for (const ConfigEntry& entry : describe(config)) {
    lines.push_back(entry.variable + "=" + entry.value);
  }
  return lines;
}

}  // namespace

std::vector<std::string> seeds() {
  std::string all;
  for (const std::string& line : described(Config{})) all += line + "\n";
  return {all};
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kolo;
  Config config;
  try {
    const fuzz::Environment environment(fuzz::lines_of(fuzz::text_of(data, size)));
    config = Config::from_environment();
    ops::Registry().prefer(config.algorithm);
  } catch (const InvalidArgument& error) {
    fuzz::require(std::string_view(error.what()).starts_with("KOLO_"),
                  "an error names the variable");
    return 0;
  }
  const std::vector<std::string> lines = fuzz::described(config);
  const fuzz::Environment environment(lines);
  fuzz::require(fuzz::described(Config::from_environment()) == lines,
                "what is printed can be set and means the same");
  return 0;
}
