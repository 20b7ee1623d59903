#pragma once

namespace kolo::tensors {

/// While it lives, what this process writes to standard output is lost.
class QuietOutput {
 public:
  QuietOutput();
  ~QuietOutput();
  QuietOutput(const QuietOutput&) = delete;  // it restores the output once
  QuietOutput& operator=(const QuietOutput&) = delete;

 private:
  int output_ = -1;  // what it was; -1 if it could not be replaced
};

}  // namespace kolo::tensors
