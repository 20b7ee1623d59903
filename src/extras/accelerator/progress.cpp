#include "extras/accelerator/progress.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <ostream>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "kolo/extras/progress_bar.hpp"

namespace kolo::extras {

void TrainingProgress::begin(std::int64_t steps, std::size_t samples_per_step) {
  bar_.emplace(std::cout, /*on_terminal=*/true, static_cast<int>(steps),
               static_cast<double>(samples_per_step), "samples");
  steps_ = 0;
  begun_ = Clock::now();
}

void TrainingProgress::end_step(const at::Tensor& loss) {
  if (!bar_) return;
  ++steps_;
  const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
  // Reading the loss waits for the GPU, so only an update of the bar reads it.
  if (loss.defined() && bar_->is_due(steps_, seconds)) {
    bar_->update(steps_, loss.item<double>(), seconds);
  }
}

namespace {

int living = 0;
int output = -1;  // the original one; -1 if it could not be replaced

/// Called before each switch, since buffered text belongs to the output that it was written to.
void flush() {
  std::cout.flush();
  std::fflush(stdout);
}

}  // namespace

QuietOutput::QuietOutput() {
  if (living++ > 0) return;
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  flush();
  output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  if (output >= 0) dup2(nowhere, STDOUT_FILENO);
  close(nowhere);
}

QuietOutput::~QuietOutput() {
  if (--living > 0 || output < 0) return;
  flush();
  dup2(output, STDOUT_FILENO);
  close(output);
  output = -1;
}

}  // namespace kolo::extras

namespace kolo {
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

ProgressBar::ProgressBar(std::ostream& stream, bool on_terminal, int steps, double units_per_step,
                         std::string unit)
    : stream_(stream),
      on_terminal_(on_terminal),
      steps_(steps),
      units_per_step_(units_per_step),
      unit_(std::move(unit)) {}

void ProgressBar::update(int done, double loss, double seconds) {
  smooth_loss_ = has_loss_ ? smooth_loss_ + kSmoothing * (loss - smooth_loss_) : loss;
  has_loss_ = true;
  if (!is_due(done, seconds)) return;
  const bool last = done == steps_;
  next_seconds_ = seconds + (on_terminal_ ? kSecondsBetweenFrames : kSecondsBetweenLines);
  if (on_terminal_) {
    const auto filled = static_cast<std::size_t>(kBarWidth * static_cast<long>(done) / steps_);
    stream_ << "\r[" << std::string(filled, '#') << std::string(kBarWidth - filled, '.') << "] ";
  }
  stream_ << describe(done, seconds);
  if (on_terminal_) stream_ << "\x1b[K";  // erases the rest of a longer previous line
  if (!on_terminal_ || last) stream_ << '\n';
  is_drawn_ = on_terminal_ && !last;
  stream_.flush();
}

void ProgressBar::clear() {
  if (!is_drawn_) return;
  stream_ << "\r\x1b[K";
  stream_.flush();
  is_drawn_ = false;
  next_seconds_ = 0;
}

std::string ProgressBar::describe(int done, double seconds) const {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "step %d/%d  loss %.3f  %.0f %s/s  %s left", done, steps_,
                smooth_loss_, done * units_per_step_ / seconds, unit_.c_str(),
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

}  // namespace kolo
