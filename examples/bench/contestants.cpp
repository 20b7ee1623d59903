#include "bench/contestants.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <mpi.h>

#include "base/deadline.hpp"
#include "comm/make_world.hpp"
#include "comm/wait.hpp"
#include "kolo/error.hpp"
#include "runtime/backoff.hpp"

namespace bench {
namespace {

using namespace kolo;

constexpr int kFreeChannel = 2;  // the Runtime's world uses 0 and 1

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::Int32: return MPI_INT32_T;
    case DType::Int64: return MPI_INT64_T;
    case DType::Float32: return MPI_FLOAT;
    case DType::Float64: return MPI_DOUBLE;
    default: throw std::logic_error("the command line lets no other type pass");
  }
}

std::unique_ptr<Communicator> make_communicator(comm::World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.topology().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_communicator(ranks, kFreeChannel);
}

/// Runs an algorithm as the library does: looks again at once, then yields, then sleeps.
void run(Task task, std::chrono::nanoseconds spin) {
  runtime::Backoff backoff(spin);
  for (;;) {
    const Progress progress = task.poll();
    if (progress == Progress::Done) return;
    if (progress == Progress::Advanced) {
      backoff.reset();
    } else if (const auto pause = backoff.next_pause(); pause.count() > 0) {
      std::this_thread::sleep_for(pause);
    }
  }
}

}  // namespace

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names{kWholePath, kWholePathShared};
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.collective == Collective::AllReduce) names.emplace_back(algorithm.name);
  }
  return names;
}

Contestants::Contestants(const Options& options)
    : options_(options),
      world_(comm::make_world(config_)),
      runtime_({.config = config_, .world = world_}),
      communicator_(make_communicator(*world_)),
      shared_(options.max_bytes),
      plain_(options.max_bytes) {
  if (config_.shared_memory && world_->topology().is_single_node() && runtime_.size() > 1) {
    const auto make_window = [&](std::size_t bytes, std::shared_ptr<SharedWindow>& window) {
      comm::wait(world_->make_window(*communicator_, 0, bytes, window),
                 Deadline::after(config_.timeout));
    };
    make_window(config_.staging_bytes, staging_);
    make_window(options.max_bytes, buffers_);
    for (int rank = 0; rank < runtime_.size(); ++rank) {
      peer_buffers_.push_back(buffers_->segment(rank).data());
    }
  }
  add_mpi();
  add_whole_paths();
  add_algorithms(ops::Registry());
}

void Contestants::add_mpi() {
  const MPI_Datatype type = mpi_type(options_.dtype);
  all_.push_back({"MPI_Allreduce", plain_.data(), [this, type](std::size_t count) {
                    MPI_Allreduce(MPI_IN_PLACE, plain_.data(), static_cast<int>(count), type,
                                  MPI_SUM, MPI_COMM_WORLD);
                  }});
}

void Contestants::add_whole_paths() {
  const DType dtype = options_.dtype;
  if (is_wanted(kWholePath)) {
    all_.push_back(
        {kWholePath, plain_.data(), [this, dtype](std::size_t count) {
           const TensorView tensor{plain_.data(), dtype, {static_cast<std::int64_t>(count)}};
           kolo::allreduce(tensor, tensor, {.op = ReduceOp::Sum, .name = "plain"});
         }});
  }
  if (is_wanted(kWholePathShared)) {
    all_.push_back({kWholePathShared, shared_.data(), [this, dtype](std::size_t count) {
                      allreduce_async(shared_, 0, count, dtype,
                                      {.op = ReduceOp::Sum, .name = "shared"})
                          .wait();
                    }});
  }
}

void Contestants::add_algorithms(const ops::Registry& registry) {
  for (const Algorithm& algorithm : registry.algorithms()) {
    const std::string name(algorithm.name);
    if (algorithm.collective != Collective::AllReduce || !is_wanted(name)) continue;
    if (!fits(algorithm)) {
      if (options_.algorithms.empty()) continue;
      throw InvalidArgument("--algorithm " + name +
                            " cannot run here: it needs ranks that share memory");
    }
    const bool is_zero_copy = algorithm.needs == Needs::PeerBuffers;
    CollectiveCall call;
    call.communicator = communicator_.get();
    call.window = staging_.get();
    if (is_zero_copy) call.peer_buffers = peer_buffers_;
    call.output =
        is_zero_copy ? peer_buffers_[static_cast<std::size_t>(runtime_.rank())] : plain_.data();
    call.input = call.output;
    call.dtype = options_.dtype;
    call.segment_bytes = config_.segment_bytes;
    all_.push_back({name, call.output,
                    [call, start = algorithm.run, spin = config_.spin](std::size_t count) mutable {
                      call.count = count;
                      run(start(call), spin);
                    }});
  }
}

bool Contestants::fits(const Algorithm& algorithm) const {
  if (algorithm.name == "adasum") return false;  // it makes no sums
  switch (algorithm.needs) {
    case Needs::Messages: return true;
    case Needs::NativeCollectives: return communicator_->native() != nullptr;
    case Needs::Window:
    case Needs::PeerBuffers: return staging_ != nullptr;
    case Needs::Nodes: return false;  // all ranks are taken for one node
  }
  return false;
}

bool Contestants::is_wanted(const std::string& name) const {
  const auto& wanted = options_.algorithms;
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
}

}  // namespace bench
