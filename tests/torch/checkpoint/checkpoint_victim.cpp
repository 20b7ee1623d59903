// Saves checkpoints until it is killed, and reads what is there afterwards; see kill_test.py.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/kill_at.hpp"
#include "torch/checkpoint/model.hpp"
#include "torch/checkpoint/write_checkpoint.hpp"

namespace {

using namespace kolo;
using namespace kolo::test;

constexpr const char* kUsage = R"(usage:
  checkpoint_victim save <folder> <number> [<rank> <moment>]
      saves checkpoint <number>, keeps one; <rank> is killed at its call <moment> (see kill_at.hpp)
  checkpoint_victim save-on <folder> <number>
      saves checkpoints from <number> on, and prints each number when it is saved
  checkpoint_victim read <folder>
      reads all of the newest checkpoint and prints its number
)";

void save(Runtime& runtime, const std::string& folder, unsigned number) {
  const Slices own = own_slices(large_model(), runtime.size(), runtime.rank(), number);
  tensors::write_checkpoint(folder, own.slices, {{"number", number}}, /*keep_last=*/1, {});
}

void save_on(Runtime& runtime, const std::string& folder, unsigned number) {
  std::printf("rank %d is process %d\n", runtime.rank(), ::getpid());
  for (;; ++number) {
    save(runtime, folder, number);
    if (runtime.rank() == 0) std::printf("saved %u\n", number);
    std::fflush(stdout);
  }
}

void read(const std::string& folder) {
  const tensors::Checkpoint checkpoint(folder, {});
  const unsigned number = checkpoint.details().at("number").get<unsigned>();
  const std::vector<TestTensor> model = large_model();
  if (checkpoint.tensors().size() != model.size()) throw std::runtime_error("tensors are missing");
  for (const TestTensor& tensor : model) {
    if (read_slice(checkpoint, tensor, 0, tensor.elements()) != contents(tensor, number)) {
      throw std::runtime_error("tensor " + tensor.name + " has other elements");
    }
  }
  std::printf("read %u\n", number);
}

int run(const std::vector<std::string>& arguments) {
  const std::size_t count = arguments.size();
  if (count < 2) {
    std::cerr << kUsage;
    return 2;
  }
  Runtime runtime;
  const std::string& folder = arguments[1];
  if (arguments[0] == "save" && (count == 3 || count == 5)) {
    if (count == 5 && std::stoi(arguments[3]) == runtime.rank()) {
      kill_at(folder, std::stol(arguments[4]));
    }
    save(runtime, folder, static_cast<unsigned>(std::stoul(arguments[2])));
  } else if (arguments[0] == "save-on" && count == 3) {
    save_on(runtime, folder, static_cast<unsigned>(std::stoul(arguments[2])));
  } else if (arguments[0] == "read" && count == 2) {
    read(folder);
  } else {
    std::cerr << kUsage;
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "checkpoint_victim: " << error.what() << "\n";
    return 1;
  }
}
