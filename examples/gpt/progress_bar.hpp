#pragma once

#include <iosfwd>
#include <string>

namespace gpt {

/// Shows the progress of training: a bar on one line of a terminal, elsewhere a plain line now and
/// then.
class ProgressBar {
 public:
  /// Writes to `stream`. `tokens_per_step` counts those of all ranks.
  ProgressBar(std::ostream& stream, bool on_terminal, int steps, double tokens_per_step);

  /// `done` steps took `seconds` so far; `loss` is the last step's.
  void update(int done, double loss, double seconds);

 private:
  std::string describe(int done, double seconds) const;

  std::ostream& stream_;
  bool on_terminal_;
  int steps_;
  double tokens_per_step_;
  double smooth_loss_ = 0;
  double next_seconds_ = 0;
};

/// Whether standard output goes to a terminal. mpirun gives its processes a terminal of their own
/// even where it writes to a file itself, so what started this process is asked as well.
bool output_is_terminal();

}  // namespace gpt
