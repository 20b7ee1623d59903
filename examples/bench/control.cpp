#include "bench/control.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "bench/gpu.hpp"
#include "bench/jobs.hpp"
#include "bench/machine.hpp"
#include "bench/measure.hpp"
#include "bench/model_gradients.hpp"
#include "bench/report.hpp"
#include "kolo/error.hpp"

namespace bench {
namespace {

std::vector<Workload> workloads_of(const Options& options, int ranks) {
  if (options.is_gradients()) {
    return {{Operation::AllReduce, options.dtype, gradient_counts(options.model)}};
  }
  std::vector<Workload> workloads;
  for (const std::size_t bytes : sizes_of(options)) {
    workloads.push_back(workload_of(options.operation, options.dtype, bytes, options.group, ranks));
  }
  return workloads;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

constexpr int kFailed = 1;

/// A word for the shell.
std::string quote(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// The first line that `mpirun --version` prints.
std::string version_of(const std::string& mpirun) {
  std::array<char, 256> line{};
  const std::string command = quote(mpirun) + " --version 2>/dev/null </dev/null";
  if (std::FILE* const output = ::popen(command.c_str(), "r")) {  // NOLINT: the program asked for
    if (std::fgets(line.data(), line.size(), output) == nullptr) line[0] = '\0';
    ::pclose(output);
  }
  return line.data();
}

/// The value of KOLO_MPIRUN, or "mpirun".
std::string default_mpirun() {
  const char* const wanted = std::getenv("KOLO_MPIRUN");
  return wanted != nullptr && *wanted != '\0' ? wanted : "mpirun";
}

/// Whether `mpirun` is Open MPI's, according to --version. Its options differ from those of MPICH
/// and Intel MPI.
bool is_open_mpi(const std::string& mpirun) {
  const std::string version = version_of(mpirun);
  return std::ranges::any_of(
      std::array<std::string_view, 3>{"Open MPI", "OpenRTE", "PRRTE"},
      [&](std::string_view name) { return version.find(name) != std::string::npos; });
}

/// How to start the ranks: each bound to its own core if there are enough, unless a rank needs more
/// than one.
class Launch {
 public:
  Launch(int ranks, bool one_core_each)
      : has_cores_(ranks <= describe_machine().usable_cores()),
        is_bound_(has_cores_ && one_core_each),
        command_{default_mpirun(), "-n", std::to_string(ranks)} {
    if (!is_open_mpi(command_.front())) {
      if (is_bound_) command_.insert(command_.end(), {"-bind-to", "core"});  // MPICH's and Intel's
      return;
    }
    if (!has_cores_) command_.emplace_back("--oversubscribe");
    command_.insert(command_.end(), {"--bind-to", is_bound_ ? "core" : "none"});
  }

  /// The command that starts `program` with `arguments`, preceded by `before`.
  std::vector<std::string> command(const std::filesystem::path& program,
                                   const std::vector<std::string>& arguments = {},
                                   const std::vector<std::string>& before = {}) const {
    std::vector<std::string> command = command_;
    command.insert(command.end(), before.begin(), before.end());
    command.push_back(program);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

  ChildProcess::Variables environment() const {
    ChildProcess::Variables variables;
    // Otherwise a waiting rank occupies the core that the rank it waits for needs.
    if (!has_cores_) variables.emplace_back("OMPI_MCA_mpi_yield_when_idle", "1");
    if (::geteuid() == 0) {  // Open MPI refuses to run as root without these
      variables.emplace_back("OMPI_ALLOW_RUN_AS_ROOT", "1");
      variables.emplace_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    return variables;
  }

 private:
  bool has_cores_;
  bool is_bound_;
  std::vector<std::string> command_;
};

/// The environments of NCCL's ranks by reference, as NCCL reads NCCL_ALGO only once per process.
const std::vector<std::pair<std::string, std::vector<std::string>>>& nccl_environments() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> all{
      {kNcclRing, {"env", "NCCL_ALGO=Ring", kNcclVariable + ("=" + std::string(kNcclRing))}},
      {kNcclAuto, {"env", "-u", "NCCL_ALGO", kNcclVariable + ("=" + std::string(kNcclAuto))}}};
  return all;
}

int drive_under(const Interrupts& interrupts, const Options& options, int argc, char** argv) {
  OutputFiles files(options);
  const int ranks = options.ranks_to_start();
  const Launch launch(ranks, !options.is_on_gpu());  // NCCL and CUDA have their own threads
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::list<RemoteJob> jobs;
  const auto start = [&](const std::string& name, const std::vector<std::string>& command) {
    jobs.emplace_back(name, command, launch.environment(), ranks, interrupts);
  };
  start("Kolo's ranks", launch.command(program, arguments));
  if (options.has_baseline() && options.is_on_gpu()) {
    for (const auto& [reference, environment] : nccl_environments()) {
      start("NCCL's ranks, " + reference, launch.command(program, arguments, environment));
    }
  } else if (options.has_baseline()) {
    start("plain MPI's ranks", launch.command(program.parent_path() / "kolo-bench-mpi"));
  }
  std::vector<Job*> all;
  for (RemoteJob& job : jobs) all.push_back(&job);
  const int status = control(options, options.baseline, all, &files);
  for (RemoteJob& job : jobs) job.finish();
  return status;
}

}  // namespace

OutputFiles::OutputFiles(const Options& options)
    : json_(options.json), csv_(options.csv), plot_(options.plot) {
  for (const auto* file : {&json_, &csv_, &plot_}) {
    if (!file->error().empty()) throw kolo::InvalidArgument(file->error());
  }
}

void OutputFiles::write(const Report& report) {
  if (json_.is_wanted()) json_.write(to_json(report));
  if (csv_.is_wanted()) csv_.write(to_csv(report));
  if (plot_.is_wanted()) plot_.write(to_svg(report));
}

int control(const Options& options, const std::string& baseline, const std::vector<Job*>& jobs,
            OutputFiles* files) {
  const bool prints = files != nullptr;
  const int ranks = jobs.front()->ranks();
  Report report{options,           ranks, baseline, describe_machine(), {}, jobs.front()->gpu(),
                jobs.back()->mpi()};
  if (prints) print(table_head(report));
  std::uint64_t wrong = 0;
  for (const Workload& workload : workloads_of(options, ranks)) {
    const Repetition repetition{options.warmup, options.rounds,
                                iterations_of(options, size_bytes(workload, ranks))};
    for (Row& row : measure(jobs, workload, repetition)) {
      wrong += row.wrong;
      if (prints) print(table_line(report, row));
      report.rows.push_back(std::move(row));
    }
  }
  if (prints) files->write(report);
  return wrong == 0 ? 0 : kSomeWrong;
}

int drive(const Options& options, int argc, char** argv) {
  int signal = 0;
  try {
    const Interrupts interrupts;
    return drive_under(interrupts, options, argc, argv);
  } catch (const Interrupted& interrupted) {
    signal = interrupted.signal();
  } catch (const CannotStart& error) {
    std::fprintf(stderr, "kolo-bench: %s (KOLO_MPIRUN names another mpirun)\n", error.what());
  } catch (const JobError& error) {
    std::fprintf(stderr, "kolo-bench: %s\n", error.what());
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "kolo-bench: %s\n", error.what());
  }
  if (signal != 0) std::raise(signal);  // ends as if it had never been caught
  return kFailed;
}

void start_ranks(int ranks, char** argv) {
  constexpr const char* kStarted = "KOLO_BENCH_STARTED";
  const Launch launch(ranks, /*one_core_each=*/true);
  std::vector<std::string> arguments;
  for (char** argument = argv + 1; *argument != nullptr; ++argument) {
    arguments.emplace_back(*argument);
  }
  std::vector<std::string> command =
      launch.command(std::filesystem::read_symlink("/proc/self/exe"), arguments);
  if (std::getenv(kStarted) != nullptr) {
    throw kolo::InvalidArgument(command.front() + " has started this process, but as one rank");
  }
  ::setenv(kStarted, "1", 1);
  for (const auto& [name, value] : launch.environment()) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  ::execvp(words.front(), words.data());
  throw kolo::InvalidArgument("cannot start " + command.front() + ": " + std::strerror(errno) +
                              " (KOLO_MPIRUN names another mpirun)");
}

}  // namespace bench
