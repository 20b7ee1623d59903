#include "bench/rank.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <unistd.h>
#include <utility>
#include <vector>

#include <mpi.h>

#include "bench/channel.hpp"
#include "bench/workload.hpp"
#include "kolo/error.hpp"

namespace bench {
namespace {

// One warm-up call per this many measured calls. The first calls after other cases' blocks find
// cold caches, and if calls are short, little else would be measured.
constexpr int kCallsPerLeadIn = 10;

void rewrite_inputs(const Workload& workload, const Case& bench_case, int rank, int ranks) {
  if (workload.operation == Operation::Broadcast && rank != 0) return;
  for (const Tensor& tensor : bench_case.tensors) {
    std::memset(
        tensor.input, 0,
        input_count(workload.operation, tensor.count, ranks) * kolo::size_of(workload.dtype));
  }
}

constexpr std::size_t kLongestName = 256;

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data());
  return version.substr(0, version.find_first_of(",\n"));
}

std::string name_of(MPI_T_enum values, int value) {
  std::array<char, kLongestName> name{};
  int length = kLongestName;
  int count = 0;
  if (MPI_T_enum_get_info(values, &count, name.data(), &length) != MPI_SUCCESS) return "unknown";
  for (int item = 0; item < count; ++item) {
    int item_value = 0;
    length = kLongestName;
    MPI_T_enum_get_item(values, item, &item_value, name.data(), &length);
    if (item_value == value) return name.data();
  }
  return "unknown";
}

/// The value of one of MPI's control variables, an enumeration; "unknown" if this MPI has none of
/// that name.
std::string value_of(const char* variable) {
  int index = 0;
  if (MPI_T_cvar_get_index(variable, &index) != MPI_SUCCESS) return "unknown";
  int text_length = 0;
  int verbosity = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_T_enum values = MPI_T_ENUM_NULL;
  int binding = 0;
  int scope = 0;
  MPI_T_cvar_get_info(index, nullptr, &text_length, &verbosity, &type, &values, nullptr,
                      &text_length, &binding, &scope);
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  int count = 0;
  if (values == MPI_T_ENUM_NULL || type != MPI_INT ||
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) {
    return "unknown";
  }
  std::vector<int> value(static_cast<std::size_t>(std::max(count, 1)));
  const bool is_read = MPI_T_cvar_read(handle, value.data()) == MPI_SUCCESS;
  MPI_T_cvar_handle_free(&handle);
  return is_read ? name_of(values, value.front()) : "unknown";
}

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

HostTimer::HostTimer() {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
}

Block HostTimer::run(const Workload& workload, const Case& bench_case, int iterations) {
  using Clock = std::chrono::steady_clock;
  const auto call = [&] {
    rewrite_inputs(workload, bench_case, rank_, ranks_);
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = Clock::now();
    bench_case.run();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  };
  for (int i = 0; i < iterations / kCallsPerLeadIn; ++i) call();
  Block block;
  const double cpu_start = process_cpu_s();
  for (int i = 0; i < iterations; ++i) {
    block.calls_us.push_back(call());
    block.mean_us += block.calls_us.back() / iterations;
  }
  block.cpu_s = process_cpu_s() - cpu_start;
  block.host_us = block.mean_us;
  return block;
}

std::uint64_t HostTimer::count_wrong(const Workload& workload, const Case& bench_case) {
  write_inputs(workload, bench_case.tensors, rank_, ranks_);
  bench_case.run();
  return bench::count_wrong(workload, bench_case.tensors, rank_, ranks_);
}

Worker::Worker(MakeCases make_cases, std::unique_ptr<Timer> timer)
    : make_cases_(std::move(make_cases)), timer_(std::move(timer)) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
}

std::vector<Label> Worker::prepare(const Workload& workload) {
  cases_.clear();
  workload_ = workload;
  cases_ = make_cases_(workload_);
  std::vector<Label> labels;
  for (const Case& each : cases_) labels.push_back(each.label);
  return labels;
}

Block Worker::run(std::size_t index, int iterations) {
  return timer_->run(workload_, cases_[index], iterations);
}

std::uint64_t Worker::count_wrong(std::size_t index) {
  return timer_->count_wrong(workload_, cases_[index]);
}

MpiDescription describe_mpi() {
  MpiDescription description{library_version(), "unknown"};
  int provided = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return description;
  // Open MPI's transport inside a node: "vader" up to version 4, "sm" since. The variable holds
  // what was detected at startup, not what was requested.
  for (const char* const transport : {"vader", "sm"}) {
    const std::string variable = "btl_" + std::string(transport) + "_single_copy_mechanism";
    if (description.single_copy == "unknown") description.single_copy = value_of(variable.c_str());
  }
  MPI_T_finalize();
  return description;
}

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
