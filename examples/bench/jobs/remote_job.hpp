#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/jobs/channel.hpp"
#include "bench/jobs/child_process.hpp"
#include "bench/jobs/interrupts.hpp"
#include "bench/jobs/job.hpp"
#include "bench/jobs/listener.hpp"

namespace bench {

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
