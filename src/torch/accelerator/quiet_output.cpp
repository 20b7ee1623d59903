#include "torch/accelerator/quiet_output.hpp"

#include <cstdio>
#include <fcntl.h>
#include <iostream>
#include <unistd.h>

namespace kolo::tensors {
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

}  // namespace kolo::tensors
