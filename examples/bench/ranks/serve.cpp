#include "bench/ranks/serve.hpp"

#include <cstdlib>
#include <exception>
#include <unistd.h>

#include <mpi.h>

#include "bench/jobs/channel.hpp"
#include "bench/jobs/messages.hpp"
#include "kolo/error.hpp"

namespace bench {
namespace {

constexpr int kFailed = 1;

nlohmann::json answer(Worker& worker, const nlohmann::json& order) {
  const auto what = order.at("do").get<std::string>();
  if (what == "prepare") {
    return {{"labels", worker.prepare(order.at("workload").get<Workload>())}};
  }
  const auto case_index = order.at("case").get<std::size_t>();
  if (what == "check") return {{"wrong", worker.count_wrong(case_index)}};
  return worker.run(case_index, order.at("iterations").get<int>());
}

/// Executes commands until "end"; false if the controller has closed the connection.
bool execute_commands(Channel& channel, Worker& worker) {
  channel.send({{"rank", worker.rank()},
                {"ranks", worker.ranks()},
                {"pid", ::getpid()},
                {"gpu", worker.gpu()},
                {"mpi", describe_mpi()}});
  while (const auto order = channel.receive()) {
    if (order->at("do") == "end") return true;
    if (!channel.send(answer(worker, *order))) break;
  }
  return false;
}

}  // namespace

std::string controller_socket() {
  const char* const path = std::getenv(kSocketVariable);
  return path == nullptr ? "" : path;
}

int serve(int thread_level, const std::function<Worker()>& make) {
  Channel channel = Channel::connect(controller_socket());
  bool has_ended = false;
  try {
    int provided = thread_level;
    MPI_Init_thread(nullptr, nullptr, thread_level, &provided);
    Worker worker = make();
    has_ended = execute_commands(channel, worker);
  } catch (const kolo::InvalidArgument& error) {
    channel.send({{"error", error.what()}, {"is_usage", true}});
  } catch (const std::exception& error) {
    channel.send({{"error", error.what()}, {"is_usage", false}});
  }
  // The controller ends the other ranks too. They may be waiting for this one, so it must not wait
  // for them.
  if (!has_ended) std::_Exit(kFailed);
  MPI_Finalize();
  return 0;
}

}  // namespace bench
