// Runs random programs against the reference, with ranks that are threads; under mpirun, with ranks
// that are processes.
//
//   program_gate --seeds 1000 --jobs 2
//   program_gate --seed 17 --trace
//   mpirun -np 3 program_gate --seeds 200
//
// A seed determines 2, 3 or 4 ranks unless --ranks is given. Exit code 0: all programs succeeded.
// Stops at the first failure, or continues with --keep-going; a hang always ends it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <mpi.h>

#include "comm/launcher.hpp"
#include "programs/random_program.hpp"
#include "programs/run_in_processes.hpp"
#include "programs/run_program.hpp"

/// Defined by the sanitizers, if the program is built with one.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*)());

namespace {

using namespace kolo::programs;
using Clock = std::chrono::steady_clock;

/// The seeds that run now, by job, for the report of a crash; 0: none.
constexpr unsigned kMaxJobs = 64;
std::atomic<std::uint64_t> running_seeds[kMaxJobs];

struct Arguments {
  std::uint64_t first = 1;
  std::uint64_t seeds = 1'000;
  double hours = 0;
  unsigned jobs = 2;
  int ranks = 0;  ///< 0: by the seed
  long limit_s = 120;
  bool trace = false;
  bool keep_going = false;
};

void add_to(CLI::App& app, Arguments& arguments) {
  CLI::Option* seeds = app.add_option("--seeds", arguments.seeds, "how many programs");
  CLI::Option* hours = app.add_option("--hours", arguments.hours, "go on for so long")
                           ->check(CLI::PositiveNumber)
                           ->excludes(seeds);
  app.add_option("--first", arguments.first, "the first seed");
  app.add_option("--seed", arguments.first, "this one program only")->excludes(seeds, hours);
  app.add_option("--jobs", arguments.jobs, "programs at the same time, of ranks that are threads")
      ->check(CLI::Range(1U, kMaxJobs));
  app.add_option("--ranks", arguments.ranks, "ranks of every program that are threads")
      ->check(CLI::Range(1, 64));
  app.add_option("--limit", arguments.limit_s, "seconds after which a program counts as a hang")
      ->check(CLI::Range(1, 86'400));
  app.add_flag("--keep-going", arguments.keep_going, "after a program that failed");
  app.add_flag("--trace", arguments.trace, "show all that happens");
}

void write_out(const char* text, std::size_t length) {
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, text, length);
}

/// Calls only functions that are safe in a signal handler.
void report_running_seeds() {
  constexpr std::string_view kBegin = "CRASHED in one of the seeds";
  write_out(kBegin.data(), kBegin.size());
  for (const std::atomic<std::uint64_t>& seed : running_seeds) {
    char digits[21];
    char* const end = digits + sizeof(digits);
    char* place = end;
    for (std::uint64_t rest = seed; rest > 0; rest /= 10) {
      *--place = static_cast<char>('0' + rest % 10);
    }
    if (place != end) *--place = ' ';
    write_out(place, static_cast<std::size_t>(end - place));
  }
  constexpr std::string_view kEnd =
      "\n  replay: program_gate --seed S --trace, with --ranks as here\n";
  write_out(kEnd.data(), kEnd.size());
}

void report_crash(int signal) {
  report_running_seeds();
  _exit(128 + signal);
}

void watch_for_crashes() {
  if (&__sanitizer_set_death_callback != nullptr) {  // the sanitizer reports more
    __sanitizer_set_death_callback(report_running_seeds);
    return;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE}) std::signal(signal, report_crash);
}

/// The totals of all programs so far.
struct Total {
  std::mutex mutex;
  std::uint64_t programs = 0;
  std::uint64_t operations = 0;
  std::uint64_t failed = 0;
  Clock::time_point began = Clock::now();

  void add(const Program& program, const std::string& failure, const std::string& replay) {
    const std::lock_guard lock(mutex);
    ++programs;
    operations += program.operations.size();
    if (programs % 1'000 == 0) std::cout << programs << " programs" << std::endl;
    if (failure.empty()) return;
    ++failed;
    std::cout << "FAILED seed " << program.seed << " on " << program.size << " ranks\n"
              << failure << "  replay: " << replay << std::endl;
  }

  void print() {
    const std::chrono::duration<double> took = Clock::now() - began;
    std::cout << programs << " programs, " << operations << " operations in " << took.count()
              << " s: " << static_cast<double>(programs) / took.count() << " programs/s\n"
              << "gate: " << (failed == 0 ? "passed" : std::to_string(failed) + " FAILED") << "\n";
  }
};

RunOptions run_options(const Arguments& arguments, const Program& program, std::string replay) {
  RunOptions options;
  options.limit = std::chrono::seconds(arguments.limit_s);
  options.replay = std::move(replay);
  if (!arguments.trace) return options;
  std::cout << describe(program) << std::flush;
  options.trace = &std::cout;
  return options;
}

void run_share(const Arguments& arguments, const std::string& tool, Clock::time_point until,
               unsigned job, std::atomic<std::uint64_t>& next, Total& total) {
  const std::uint64_t end = arguments.first + arguments.seeds;
  for (std::uint64_t seed = next++; seed < end && Clock::now() < until; seed = next++) {
    running_seeds[job] = seed;
    const int size = arguments.ranks > 0 ? arguments.ranks : random_size(seed);
    const Program program = random_program(seed, size);
    const RunOptions options = run_options(
        arguments, program,
        tool + " --seed " + std::to_string(seed) + " --ranks " + std::to_string(size) + " --trace");
    const std::string failure = run_in_threads(program, options);
    total.add(program, failure, options.replay);
    if (!failure.empty() && !arguments.keep_going) next = end;
  }
  running_seeds[job] = 0;
}

int run_with_threads(const Arguments& arguments, const std::string& tool, Clock::time_point until) {
  Total total;
  std::atomic<std::uint64_t> next = arguments.first;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::min<std::uint64_t>(arguments.jobs, arguments.seeds); ++i) {
    threads.emplace_back([&, i] { run_share(arguments, tool, until, i, next, total); });
  }
  for (std::thread& thread : threads) thread.join();
  total.print();
  return total.failed == 0 ? 0 : 1;
}

/// Runs on every rank of the MPI job, seed by seed.
int run_with_processes(const Arguments& arguments, const std::string& tool,
                       Clock::time_point until) {
  kolo::test::MpiRanks ranks(std::chrono::seconds(arguments.limit_s));
  Total total;
  std::string failure;
  for (std::uint64_t seed = arguments.first; seed < arguments.first + arguments.seeds; ++seed) {
    const bool is_finished = Clock::now() >= until || (!failure.empty() && !arguments.keep_going);
    if (ranks.gather(is_finished ? 1 : 0, "next seed")[0] != 0) break;
    running_seeds[0] = seed;
    const Program program = random_program(seed, ranks.size());
    const std::string job = "mpirun -np " + std::to_string(ranks.size()) + " " + tool;
    const RunOptions options =
        run_options(arguments, program, job + " --seed " + std::to_string(seed) + " --trace");
    failure = run_in_processes(program, ranks, options);
    if (ranks.rank() == 0) total.add(program, failure, options.replay);
  }
  if (ranks.rank() == 0) total.print();
  const int failed = total.failed == 0 ? 0 : 1;
  return ranks.gather(failed, "end of all seeds")[0];
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs random programs against the reference.", "program_gate");
  add_to(app, arguments);
  CLI11_PARSE(app, argc, argv);
  if (app.count("--seed") > 0) arguments.seeds = 1;
  if (app.count("--hours") > 0) arguments.seeds = std::numeric_limits<std::uint32_t>::max();
  watch_for_crashes();
  const auto until =
      arguments.hours > 0
          ? Clock::now() + std::chrono::seconds(static_cast<long>(arguments.hours * 3600))
          : Clock::time_point::max();
  if (!kolo::comm::find_launcher()) {
    return run_with_threads(arguments, argv[0], until);
  }
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const int result = run_with_processes(arguments, argv[0], until);
  MPI_Finalize();
  return result;
}
