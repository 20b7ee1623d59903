#pragma once

namespace kolo::tensors {

/// While any lives, what this process writes to standard output is lost. Not thread-safe.
class QuietOutput {
 public:
  QuietOutput();
  ~QuietOutput();
  QuietOutput(const QuietOutput&) = delete;  // it counts once
  QuietOutput& operator=(const QuietOutput&) = delete;
};

}  // namespace kolo::tensors
