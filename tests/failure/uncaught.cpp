// Rank 2 of a few fails in step 50, by `throw`, `kill`, `stop` or `mismatch`, and no rank catches
// anything: uncaught <way>. See one_screen_test.py.
#include <csignal>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include "kolo/collectives.hpp"

int main(int, char** argv) {
  const std::string way = argv[1];
  const kolo::Runtime runtime;
  for (int step = 0; step < 100; ++step) {
    const bool fails = step == 50 && runtime.rank() == 2;
    if (fails && way == "throw") {
      // As LibTorch's errors end.
      throw std::runtime_error(
          "the disk of node 7 is full\nException raised from write at disk.cpp:7 (most recent call "
          "first):\nframe #0: write + 0x7 (0x7f3a in libdisk.so)");
    }
    if (fails && way == "kill") ::kill(::getpid(), SIGKILL);
    if (fails && way == "stop") ::kill(::getpid(), SIGSTOP);
    std::vector<float> values(fails && way == "mismatch" ? 99 : 100, 1.0F);
    const kolo::TensorView view{.data = values.data(),
                                .dtype = kolo::DType::Float32,
                                .shape = {static_cast<std::int64_t>(values.size())}};
    kolo::allreduce(view, view, {.name = "loss"});
  }
}
