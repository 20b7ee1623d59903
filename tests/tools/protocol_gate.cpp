// Runs the simulator over many seeds: the gate of the coordination protocol.
//
//   protocol_gate --seeds 100000 --jobs 2
//   protocol_gate --seed 17 --trace
//
// Exit code 0: no seed violates the protocol. Ends with the first one that does, or keeps going.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "support/protocol/simulator.hpp"

namespace {

using kolo::simulator::random_scenario;
using kolo::simulator::Result;
using kolo::simulator::simulate;

struct Arguments {
  std::uint64_t first = 1;
  std::uint64_t seeds = 100'000;
  unsigned jobs = 2;
  bool trace = false;
  bool keep_going = false;
};

void add_to(CLI::App& app, Arguments& arguments) {
  CLI::Option* seeds = app.add_option("--seeds", arguments.seeds, "how many");
  app.add_option("--first", arguments.first, "the first one");
  app.add_option("--seed", arguments.first, "this one only")->excludes(seeds);
  app.add_option("--jobs", arguments.jobs, "threads that run them")->check(CLI::Range(1, 1024));
  app.add_flag("--keep-going", arguments.keep_going, "after a seed that failed");
  app.add_flag("--trace", arguments.trace, "show all that happens");
}

thread_local volatile std::uint64_t current_seed = 0;

/// A core that crashes has failed its seed too.
void report_crash(int signal) {
  char text[] = "crashed in seed                     \n";
  char* place = text + sizeof(text) - 3;
  for (std::uint64_t rest = current_seed; rest > 0; rest /= 10) {
    *place-- = static_cast<char>('0' + rest % 10);
  }
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, text, sizeof(text) - 1);
  _exit(128 + signal);
}

/// The totals of all seeds so far.
struct Total {
  std::mutex mutex;
  std::uint64_t seeds = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t negotiations = 0;
  std::uint64_t outcomes = 0;
  std::uint64_t events = 0;
  std::uint64_t first_failed = 0;
  std::uint64_t failed = 0;
};

void run_seeds(const Arguments& arguments, const char* program, std::atomic<std::uint64_t>& next,
               Total& total) {
  const auto end = arguments.first + arguments.seeds;
  for (std::uint64_t seed = next++; seed < end; seed = next++) {
    current_seed = seed;
    const Result result = simulate(random_scenario(seed), arguments.trace ? &std::cout : nullptr);
    const std::lock_guard lock(total.mutex);
    ++total.seeds;
    total.exchanges += result.exchanges;
    total.negotiations += result.negotiations;
    total.outcomes += result.outcomes;
    total.events += result.events;
    if (total.seeds % 10'000 == 0) std::cout << total.seeds << " seeds" << std::endl;
    if (result.violation.empty()) continue;
    ++total.failed;
    std::cout << "FAILED seed " << seed << ": " << result.violation << "\n  replay: " << program
              << " --seed " << seed << " --trace" << std::endl;
    if (total.first_failed == 0 || seed < total.first_failed) total.first_failed = seed;
    if (!arguments.keep_going) next = end;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Simulates the coordination protocol.", "protocol_gate");
  add_to(app, arguments);
  CLI11_PARSE(app, argc, argv);
  if (app.count("--seed") > 0) arguments.seeds = 1;
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE}) std::signal(signal, report_crash);

  Total total;
  std::atomic<std::uint64_t> next = arguments.first;
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::min<std::uint64_t>(arguments.jobs, arguments.seeds); ++i) {
    threads.emplace_back([&] { run_seeds(arguments, argv[0], next, total); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;

  std::cout << total.seeds << " seeds, " << total.exchanges << " exchanges, " << total.negotiations
            << " negotiations, " << total.outcomes << " outcomes, " << total.events << " events in "
            << took.count() << " s: " << static_cast<double>(total.seeds) / took.count()
            << " seeds/s\n";
  if (total.failed > 0) {
    std::cout << "gate: FAILED, first in seed " << total.first_failed << "\n";
    return 1;
  }
  std::cout << "gate: passed\n";
  return 0;
}
