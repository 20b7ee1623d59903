// The main of a fuzz target where there is no libFuzzer: runs every seed and every file of the
// corpus once, then a fixed number of mutations of them, the same in every run.
//
//   <what>_fuzz CORPUS [MUTATIONS]   CORPUS: a folder, or one file to run once; 2,000 mutations
//
// An input that ends the program is kept in the current folder, as <program>.failed.

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "fuzz/fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestInput = 8192;

std::string failed_name;  // where to store the running input if it fails
const std::string* running = nullptr;

/// Called while the program ends, so it makes only system calls.
void save_running_input() {
  if (running == nullptr) return;
  const int file = ::open(failed_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file < 0) return;
  static_cast<void>(!::write(file, running->data(), running->size()));
  static_cast<void>(!::write(STDERR_FILENO, "the input is in ", 16));
  static_cast<void>(!::write(STDERR_FILENO, failed_name.data(), failed_name.size()));
  static_cast<void>(!::write(STDERR_FILENO, "\n", 1));
  ::close(file);
}

extern "C" void save_input_and_exit(int signal) {
  save_running_input();
  ::_exit(128 + signal);
}

void save_failing_inputs() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(save_running_input);
  std::signal(SIGABRT, save_input_and_exit);
#else
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, save_input_and_exit);
  }
#endif
}

void run(const std::string& input) {
  // Memory of exactly the input's size, so that AddressSanitizer reports a read past its end.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  running = &input;
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  running = nullptr;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Changes inputs at random, with the same random numbers in every run.
class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& inputs) : inputs_(inputs) {}

  std::string next() {
    std::string input = any_input();
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(input);
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const std::string& any_input() { return inputs_[below(inputs_.size())]; }

  void change(std::string& input) {
    static constexpr std::array<char, 10> kLetters{'\0', '\1', '\x7f', '\x80', '\xff',
                                                   '"',  '9',  '-',    '[',    '}'};
    const std::size_t at = below(input.size());
    const std::size_t length = below(std::min<std::size_t>(input.size() - at, 64) + 1);
    switch (below(7)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!input.empty()) input[at] = kLetters[below(kLetters.size())];
        break;
      case 2: input.insert(at, 1 + below(8), kLetters[below(kLetters.size())]); break;
      case 3: input.erase(at, length); break;
      case 4: input.insert(at, input.substr(below(input.size() + 1), length)); break;
      case 5: input.resize(at); break;
      default: {
        const std::string& other = any_input();
        input.replace(at, length, other.substr(below(other.size() + 1), length));
      }
    }
    if (input.size() > kLongestInput) input.resize(kLongestInput);
  }

  const std::vector<std::string>& inputs_;
  std::mt19937_64 random_{20240229};
};

std::vector<std::string> inputs_in(const fs::path& corpus) {
  std::vector<fs::path> files;
  if (fs::is_directory(corpus)) {
    for (const auto& entry : fs::directory_iterator(corpus)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs = kolo::fuzz::seeds();
  for (const fs::path& file : files) inputs.push_back(read_file(file));
  inputs.emplace_back();
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS]\n", argv[0]);
    return 2;
  }
  failed_name = fs::path(argv[0]).filename().string() + ".failed";
  save_failing_inputs();
  if (fs::is_regular_file(argv[1])) {
    run(read_file(argv[1]));
    return 0;
  }
  const std::vector<std::string> inputs = inputs_in(argv[1]);
  for (const std::string& input : inputs) run(input);
  const long mutations = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 2000;
  Mutator mutator(inputs);
  for (long i = 0; i < mutations; ++i) run(mutator.next());
  std::printf("%zu inputs and %ld mutations of them\n", inputs.size(), mutations);
  return 0;
}
