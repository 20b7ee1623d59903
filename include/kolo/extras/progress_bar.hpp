#pragma once

#include <iosfwd>
#include <string>

namespace kolo {

#pragma GCC visibility push(default)
/// Shows the progress of training: a bar on a terminal, and otherwise an occasional line. Use it on
/// one rank:
///
///   kolo::ProgressBar bar(std::cout, kolo::output_is_terminal(), kSteps, kTokens, "tokens");
///   bar.update(step + 1, loss, seconds);
///
/// Nothing here is collective. Not thread-safe.
class ProgressBar {
 public:
  /// @param stream receives the bar; must outlive this
  /// @param steps total steps, at least 1
  /// @param units_per_step what all ranks together process per step
  /// @param unit name of the unit, in the plural
  ProgressBar(std::ostream& stream, bool on_terminal, int steps, double units_per_step,
              std::string unit);

  /// Whether update() with these values would write anything.
  bool is_due(int done, double seconds) const { return seconds >= next_seconds_ || done == steps_; }

  /// If an update is due, writes the loss smoothed over calls, the speed, and the time left.
  /// @param done steps so far, 1 or more
  /// @param loss of the last step
  /// @param seconds that these steps took
  void update(int done, double loss, double seconds);

  /// Erases the bar, so that the program can write to the terminal. The next update() draws it
  /// again.
  void clear();

 private:
  std::string describe(int done, double seconds) const;

  std::ostream& stream_;
  bool on_terminal_;
  int steps_;
  double units_per_step_;
  std::string unit_;
  double smooth_loss_ = 0;
  double next_seconds_ = 0;
  bool has_loss_ = false;
  bool is_drawn_ = false;
};

/// Whether standard output goes to a terminal. mpirun gives its processes a pseudo-terminal even if
/// its own output goes to a file, so this also checks the output of the parent process.
bool output_is_terminal();
#pragma GCC visibility pop

}  // namespace kolo
