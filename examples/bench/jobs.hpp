#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "bench/channel.hpp"
#include "bench/rank.hpp"
#include "bench/workload.hpp"

namespace bench {

/// The controller's view of ranks that measure together: this process and its peers, which make the
/// same calls (LocalJob), or processes that receive commands (RemoteJob). All calls block.
class Job {
 public:
  virtual ~Job() = default;

  virtual int ranks() const = 0;

  /// Rank 0's GPU, if the tensors are on GPUs.
  virtual GpuDescription gpu() const { return {}; }

  /// Rank 0's MPI, if it uses MPI.
  virtual MpiDescription mpi() const { return {}; }

  /// Selects `workload`. Returns the labels of the cases that can run it.
  virtual std::vector<Label> prepare(const Workload& workload) = 0;

  /// Runs the case whose label `prepare` returned at `case_index`, `iterations` times.
  virtual Block run(std::size_t case_index, int iterations) = 0;

  /// The number of wrong elements in the case's results, over all ranks.
  virtual std::uint64_t count_wrong(std::size_t case_index) = 0;
};

/// A signal has asked the process to end.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override { return "interrupted"; }

 private:
  int signal_;
};

/// While it exists, the signals that end a program are queued and read, so that child processes can
/// be ended first. Applies to the thread that constructs it and to those that it starts later.
class Interrupts {
 public:
  Interrupts();
  Interrupts(const Interrupts&) = delete;  // it restores the mask once
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts();

  int descriptor() const { return signals_.number(); }
  /// Throws Interrupted if a signal has arrived.
  void check() const;
  /// The signal mask with which children start.
  const sigset_t& blocked_before() const { return before_; }

 private:
  sigset_t before_{};
  Descriptor signals_;
};

/// A program cannot be started; the text names it and says why.
class CannotStart : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A child process without input, whose output goes to our stderr. It ends when this process dies,
/// and when this object is destroyed.
class ChildProcess {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// Throws CannotStart.
  ChildProcess(const std::vector<std::string>& command, const Variables& environment,
               const Interrupts& interrupts);
  ChildProcess(const ChildProcess&) = delete;  // a process is waited for only once
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  /// How it ended, such as "exit status 1"; empty if it is still running after `duration`.
  std::optional<std::string> wait_for(std::chrono::milliseconds duration);

  /// Sends SIGTERM. The destructor does so too, then SIGKILL if the process does not end.
  void ask_to_end();

 private:
  pid_t pid_ = -1;
  std::optional<std::string> ending_;
};

inline constexpr const char* kCleanExit = "exit status 0";

/// The ranks of a job have failed, or never started.
class JobError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Ranks in separate processes, which mpirun starts and which execute this process's commands.
/// Calls throw JobError, Interrupted, or kolo::InvalidArgument if the ranks cannot do what the
/// command line asks for. The destructor ends all of the processes, whatever has happened.
class RemoteJob : public Job {
 public:
  /// Starts `command`, an mpirun whose `ranks` processes call `serve`, and waits until they are
  /// ready. `name` is for error texts.
  RemoteJob(std::string name, const std::vector<std::string>& command,
            ChildProcess::Variables environment, int ranks, const Interrupts& interrupts);
  ~RemoteJob() override;

  int ranks() const override { return static_cast<int>(ranks_.size()); }
  GpuDescription gpu() const override { return gpu_; }
  MpiDescription mpi() const override { return mpi_; }
  std::vector<Label> prepare(const Workload& workload) override;
  Block run(std::size_t case_index, int iterations) override;
  std::uint64_t count_wrong(std::size_t case_index) override;

  /// Lets the ranks exit normally. Throws JobError if they do not, or if mpirun fails.
  void finish();

 private:
  struct Rank {
    Channel channel;
    Descriptor process;
  };

  void accept_ranks(int ranks);
  void add_rank(Channel channel, int ranks, std::vector<std::unique_ptr<Rank>>& found);
  std::vector<nlohmann::json> ask(const nlohmann::json& order);
  nlohmann::json receive(Channel& channel, const std::string& who);

  std::string name_;
  const Interrupts& interrupts_;
  std::unique_ptr<Listener> listener_;  // until all ranks have connected
  ChildProcess mpirun_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  GpuDescription gpu_;
  MpiDescription mpi_;
};

}  // namespace bench
