// Runs random training programs and shrinks those that fail.
//
//   training_gate --mode gathered --seeds 200          in a process each; ranks are threads
//   training_gate --mode none --seed 17                one program
//   training_gate --mode none --seed 17 --calls 3,9    without its other calls
//
// Modes: none, optimizer, gradients and gathered; random_copy_test runs the one copy of
// Shard::Full, which needs processes.
// Prints the smallest program that fails, and the command that replays it. Exit code 0: none fails.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <new>
#include <poll.h>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "train/random/run.hpp"

namespace {

using namespace kolo::random_training;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string mode = "none";
  std::uint64_t first = 1;
  std::uint64_t seeds = 100;
  int calls_in_program = kCalls;
  std::vector<int> calls;  // all if empty
  int timeout_s = 20;
  bool keeps_going = false;
  bool shrinks = true;
  bool prints = false;
};

/// How a program has ended.
struct Outcome {
  std::string program;
  std::vector<int> made;
  std::string failure;  // empty: well

  /// Failures of one kind differ in numbers, and in the rank that comes first. Ranks that only
  /// wait for one that has failed tell nothing.
  std::string kind() const {
    if (failure.find("the deadline passed") != std::string::npos) return "deadline";
    std::istringstream lines(failure);
    std::string line;
    while (std::getline(lines, line) && line.find("left the scope") != std::string::npos) {
    }
    const std::size_t begin = line.find("in \"");
    std::string kind;
    for (const char c : line.substr(begin == std::string::npos ? 0 : begin)) {
      if (std::isdigit(static_cast<unsigned char>(c)) == 0) kind += c;
    }
    return kind.substr(0, 80);
  }
};

constexpr char kSeparator = '\x1e';

/// In the child: runs the program, and writes its text, its calls and how it has failed.
void run_child(const Arguments& arguments, std::uint64_t seed, const std::vector<int>* kept,
               int out, Places& places) {
  torch::set_num_threads(1);
  const auto write_out = [&](const std::string& text) {
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t written = write(out, text.data() + done, text.size() - done);
      if (written <= 0) _exit(1);
      done += static_cast<std::size_t>(written);
    }
  };
  Program program;
  try {
    program = draw_program(draw_plan(seed, mode_named(arguments.mode), 0),
                           arguments.calls_in_program, kept);
  } catch (const std::exception& error) {
    return write_out(std::string{kSeparator, kSeparator} + "the reference fails: " + error.what());
  }
  std::ostringstream made;
  for (const int number : program.made()) made << number << " ";
  write_out(program.text() + kSeparator + made.str() + kSeparator);
  std::string failure = run_in_threads(program, std::chrono::seconds(arguments.timeout_s), places);
  if (!failure.empty()) failure += "\n" + places.text(program);
  write_out(failure);
}

std::string read_all(int in, pid_t child, std::chrono::seconds limit) {
  std::string text;
  const auto until = Clock::now() + limit;
  char buffer[4096];
  for (;;) {
    pollfd waiting{in, POLLIN, 0};
    if (poll(&waiting, 1, 1000) > 0) {
      const ssize_t count = read(in, buffer, sizeof(buffer));
      if (count <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(count));
    }
    if (Clock::now() > until) kill(child, SIGKILL);
  }
}

Outcome run_forked(const Arguments& arguments, std::uint64_t seed, const std::vector<int>* kept) {
  void* const shared =
      mmap(nullptr, sizeof(Places), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const places = new (shared) Places();
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // with this process
    close(ends[0]);
    run_child(arguments, seed, kept, ends[1], *places);
    _exit(0);
  }
  close(ends[1]);
  const std::chrono::seconds limit(arguments.timeout_s * 3 + 10);
  const std::string text = read_all(ends[0], child, limit);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome;
  std::istringstream parts(text);
  std::string made;
  std::getline(parts, outcome.program, kSeparator);
  std::getline(parts, made, kSeparator);
  std::getline(parts, outcome.failure, kSeparator);
  std::istringstream numbers(made);
  for (int number = 0; numbers >> number;) outcome.made.push_back(number);
  if (status != 0) {
    std::ostringstream failure;
    failure << (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? "HANGS" : "CRASHES")
            << ", status " << status << "\n";
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      failure << "  rank " << rank << ": part " << places->part[rank] << ", line "
              << places->line[rank] << "\n";
    }
    outcome.failure = failure.str();
  }
  munmap(shared, sizeof(Places));
  return outcome;
}

/// Removes calls as long as the program fails in the same way.
Outcome shrink(Outcome failed, const std::function<Outcome(const std::vector<int>&)>& run) {
  for (std::size_t size = std::max<std::size_t>(failed.made.size() / 2, 1); size >= 1;) {
    bool has_shrunk = false;
    for (std::size_t begin = 0; begin < failed.made.size();) {
      std::vector<int> kept = failed.made;
      const auto first = kept.begin() + static_cast<std::ptrdiff_t>(begin);
      kept.erase(first, first + static_cast<std::ptrdiff_t>(std::min(size, kept.size() - begin)));
      Outcome outcome = run(kept);
      if (!outcome.failure.empty() && outcome.kind() == failed.kind()) {
        failed = std::move(outcome);
        has_shrunk = true;
      } else {
        begin += size;
      }
    }
    if (size == 1 && !has_shrunk) break;
    size = std::max<std::size_t>(size / 2, 1);
  }
  return failed;
}

std::string replay(const Arguments& arguments, std::uint64_t seed, const std::vector<int>& calls) {
  std::ostringstream text;
  text << "training_gate --mode " << arguments.mode << " --seed " << seed << " --calls ";
  for (std::size_t i = 0; i < calls.size(); ++i) text << (i > 0 ? "," : "") << calls[i];
  return text.str();
}

void print_failure(const Arguments& arguments, std::uint64_t seed, const Outcome& outcome) {
  std::cout << "FAILED seed " << seed << " of mode " << arguments.mode << ", "
            << outcome.made.size() << " calls\n"
            << outcome.program << outcome.failure
            << "\n  replay: " << replay(arguments, seed, outcome.made) << "\n"
            << std::endl;
}

int run(Arguments arguments) {
  const auto began = Clock::now();
  std::uint64_t failed = 0;
  std::uint64_t calls = 0;
  for (std::uint64_t seed = arguments.first; seed < arguments.first + arguments.seeds; ++seed) {
    const std::vector<int>* const kept = arguments.calls.empty() ? nullptr : &arguments.calls;
    Outcome outcome = run_forked(arguments, seed, kept);
    calls += outcome.made.size();
    if (arguments.prints) std::cout << outcome.program << std::flush;
    if (outcome.failure.empty()) continue;
    ++failed;
    if (arguments.shrinks) {
      Arguments quick = arguments;
      quick.timeout_s = std::min(arguments.timeout_s, 3);
      outcome = shrink(std::move(outcome), [&](const std::vector<int>& calls_kept) {
        return run_forked(quick, seed, &calls_kept);
      });
    }
    print_failure(arguments, seed, outcome);
    if (!arguments.keeps_going) break;
  }
  const std::chrono::duration<double> took = Clock::now() - began;
  std::cout << calls << " calls in " << took.count() << " s\n"
            << "gate: " << (failed == 0 ? "passed" : std::to_string(failed) + " FAILED") << "\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs random training programs.", "training_gate");
  app.add_option("--mode", arguments.mode, "none, optimizer, gradients, copy or gathered");
  CLI::Option* const seeds = app.add_option("--seeds", arguments.seeds, "how many programs");
  app.add_option("--first", arguments.first, "the first seed");
  CLI::Option* const seed =
      app.add_option("--seed", arguments.first, "this program only")->excludes(seeds);
  app.add_option("--calls", arguments.calls, "without the other calls")
      ->delimiter(',')
      ->needs(seed);
  app.add_option("--length", arguments.calls_in_program, "calls of a program");
  app.add_option("--timeout", arguments.timeout_s, "KOLO_TIMEOUT, in seconds");
  app.add_flag("--keep-going", arguments.keeps_going, "after a program that fails");
  app.add_flag("!--no-shrink", arguments.shrinks, "prints failing programs as they are");
  app.add_flag("--print", arguments.prints, "prints the programs");
  CLI11_PARSE(app, argc, argv);
  if (*seed) arguments.seeds = 1;
  return run(arguments);
}
