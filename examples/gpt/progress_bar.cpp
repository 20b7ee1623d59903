#include "gpt/progress_bar.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <ostream>
#include <system_error>
#include <unistd.h>

namespace gpt {
namespace {

constexpr int kBarWidth = 24;
constexpr double kSecondsBetweenFrames = 0.1;
constexpr double kSecondsBetweenLines = 10;
constexpr double kSmoothing = 0.05;  // weight of the newest loss

std::string minutes(double seconds) {
  const long rounded = std::lround(seconds);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%ld:%02ld", rounded / 60, rounded % 60);
  return text.data();
}

}  // namespace

ProgressBar::ProgressBar(std::ostream& stream, bool on_terminal, int steps, double tokens_per_step)
    : stream_(stream),
      on_terminal_(on_terminal),
      steps_(steps),
      tokens_per_step_(tokens_per_step) {}

void ProgressBar::update(int done, double loss, double seconds) {
  smooth_loss_ = done == 1 ? loss : smooth_loss_ + kSmoothing * (loss - smooth_loss_);
  const bool last = done == steps_;
  if (seconds < next_seconds_ && !last) return;
  next_seconds_ = seconds + (on_terminal_ ? kSecondsBetweenFrames : kSecondsBetweenLines);
  if (on_terminal_) {
    const auto filled = static_cast<std::size_t>(kBarWidth * static_cast<long>(done) / steps_);
    stream_ << "\r[" << std::string(filled, '#') << std::string(kBarWidth - filled, '.') << "] ";
  }
  stream_ << describe(done, seconds);
  if (on_terminal_) stream_ << "\x1b[K";  // erases what a longer line before has left
  if (!on_terminal_ || last) stream_ << '\n';
  stream_.flush();
}

std::string ProgressBar::describe(int done, double seconds) const {
  const double tokens_per_second = done * tokens_per_step_ / seconds;
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "step %d/%d  loss %.3f  %.0f tokens/s  %s left", done,
                steps_, smooth_loss_, tokens_per_second,
                minutes(seconds * (steps_ - done) / done).c_str());
  return text.data();
}

bool output_is_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  std::error_code unknown;
  const std::filesystem::path output = std::filesystem::read_symlink(
      "/proc/" + std::to_string(getppid()) + "/fd/" + std::to_string(STDOUT_FILENO), unknown);
  return !unknown && output.string().starts_with("/dev/") && output != "/dev/null";
}

}  // namespace gpt
