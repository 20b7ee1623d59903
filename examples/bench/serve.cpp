#include "bench/serve.hpp"

#include <cstdlib>
#include <exception>
#include <unistd.h>

#include <mpi.h>

#include "bench/channel.hpp"
#include "bench/messages.hpp"
#include "kolo/error.hpp"

namespace bench {
namespace {

constexpr int kFailed = 1;

nlohmann::json answer(Station& station, const nlohmann::json& order) {
  const auto what = order.at("do").get<std::string>();
  if (what == "prepare") {
    return {{"labels", station.prepare(order.at("workload").get<Workload>())}};
  }
  const auto contestant = order.at("contestant").get<std::size_t>();
  if (what == "check") return {{"wrong", station.count_wrong(contestant)}};
  return station.run(contestant, order.at("iterations").get<int>());
}

/// Until it is told to end; false where nobody tells it anything any more.
bool obey(Channel& channel, Station& station) {
  channel.send({{"rank", station.rank()},
                {"ranks", station.ranks()},
                {"pid", ::getpid()},
                {"gpu", station.gpu()},
                {"mpi", describe_mpi()}});
  while (const auto order = channel.receive()) {
    if (order->at("do") == "end") return true;
    if (!channel.send(answer(station, *order))) break;
  }
  return false;
}

}  // namespace

std::string leading_socket() {
  const char* const path = std::getenv(kSocketVariable);
  return path == nullptr ? "" : path;
}

int serve(int thread_level, const std::function<Station()>& make) {
  Channel channel = Channel::connect(leading_socket());
  bool is_over = false;
  try {
    int provided = thread_level;
    MPI_Init_thread(nullptr, nullptr, thread_level, &provided);
    Station station = make();
    is_over = obey(channel, station);
  } catch (const kolo::InvalidArgument& error) {
    channel.send({{"error", error.what()}, {"is_usage", true}});
  } catch (const std::exception& error) {
    channel.send({{"error", error.what()}, {"is_usage", false}});
  }
  // Whoever leads ends the others too: they may wait for this one, so it must not wait for them.
  if (!is_over) std::_Exit(kFailed);
  MPI_Finalize();
  return 0;
}

}  // namespace bench
