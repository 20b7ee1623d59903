#pragma once

#include <sstream>
#include <string_view>

#pragma GCC visibility push(default)  // libkolo.so uses it
namespace kolo {

enum class LogLevel { Error, Warn, Info, Debug };

/// Throws InvalidArgument for anything but error, warn, info, debug.
LogLevel parse_log_level(std::string_view text);

/// Rank and level of this process; the Runtime sets them.
void set_log_rank(int rank);
void set_log_level(LogLevel level);
bool is_logged(LogLevel level);

/// One line on stderr, "[kolo rank 3] warn: …". The destructor writes it, in one call.
class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  LogLine(const LogLine&) = delete;  // a line is written once
  LogLine& operator=(const LogLine&) = delete;
  ~LogLine();

  template <class T>
  LogLine& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  LogLevel level_;
  std::ostringstream text_;
};

}  // namespace kolo
#pragma GCC visibility pop

/// KOLO_LOG(Warn) << …; the operands are evaluated only if the level is logged.
#define KOLO_LOG(level)                              \
  if (!::kolo::is_logged(::kolo::LogLevel::level)) { \
  } else                                             \
    ::kolo::LogLine(::kolo::LogLevel::level)
