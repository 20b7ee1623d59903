#pragma once

namespace kolo::tensors {

/// While one lives, standard output of this process is discarded. Not thread-safe.
class QuietOutput {
 public:
  QuietOutput();
  ~QuietOutput();
  QuietOutput(const QuietOutput&) = delete;  // it counts once
  QuietOutput& operator=(const QuietOutput&) = delete;
};

}  // namespace kolo::tensors
