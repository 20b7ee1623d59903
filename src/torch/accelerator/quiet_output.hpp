#pragma once

namespace kolo::tensors {

/// While an instance lives, this process discards its standard output. Not thread-safe.
class QuietOutput {
 public:
  QuietOutput();
  ~QuietOutput();
  QuietOutput(const QuietOutput&) = delete;  // it counts once
  QuietOutput& operator=(const QuietOutput&) = delete;
};

}  // namespace kolo::tensors
