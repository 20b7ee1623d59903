#include "base/log.hpp"

#include <array>
#include <atomic>
#include <string>
#include <unistd.h>

#include "kolo/error.hpp"

namespace kolo {
namespace {

constexpr std::array<std::string_view, 4> kNames{"error", "warn", "info", "debug"};

std::atomic<int> log_rank{-1};
std::atomic<LogLevel> log_level{LogLevel::Warn};

}  // namespace

LogLevel parse_log_level(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<LogLevel>(i);
  }
  throw InvalidArgument("log level '" + std::string(text) +
                        "': expected error, warn, info or debug");
}

void set_log_rank(int rank) { log_rank = rank; }
void set_log_level(LogLevel level) { log_level = level; }
bool is_logged(LogLevel level) { return level <= log_level; }

LogLine::~LogLine() {
  std::string line = "[kolo";
  if (log_rank >= 0) line += " rank " + std::to_string(log_rank);
  line += "] ";
  line += kNames[static_cast<std::size_t>(level_)];
  line += ": " + text_.str() + "\n";
  // One write, so that lines of different ranks do not mix. Errors cannot be reported, and are
  // ignored.
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

}  // namespace kolo
