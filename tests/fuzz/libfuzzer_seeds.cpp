#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz/fuzz_target.hpp"

/// Called by libFuzzer before it starts: puts the target's seeds into the first corpus folder among
/// the arguments, where libFuzzer also stores new inputs.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::filesystem::path folder = (*argv)[i];
    if (!std::filesystem::is_directory(folder)) continue;
    const std::vector<std::string> seeds = kolo::fuzz::seeds();
    for (std::size_t k = 0; k < seeds.size(); ++k) {
      std::ofstream(folder / ("seed-" + std::to_string(k)), std::ios::binary) << seeds[k];
    }
    break;
  }
  return 0;
}
