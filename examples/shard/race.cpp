#include "shard/race.hpp"

#include <algorithm>
#include <chrono>
#include <random>

#include <ATen/record_function.h>
#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/statistics.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace shard {
namespace {

/// By this rank so far.
std::uint64_t bytes_sent() { return kolo::Runtime::current().world().metrics().bytes_sent; }

void take_turn(Case& bench_case) {
  using Clock = std::chrono::steady_clock;
  kolo::barrier();
  const at::RecordFunctionGuard watches(bench_case.is_watched);
  const std::uint64_t bytes_before = bytes_sent();
  const auto start = Clock::now();
  bench_case.step();
  const std::chrono::duration<double, std::milli> time = Clock::now() - start;
  bench_case.step_bytes.push_back(static_cast<double>(bytes_sent() - bytes_before));
  bench_case.step_ms.push_back(examples::mean_over_ranks(time.count()));
}

}  // namespace

void race(std::vector<Case>& cases, int warm_up, int rounds) {
  std::mt19937 shuffler;  // with the same seed on all ranks
  std::vector<Case*> order;
  for (Case& bench_case : cases) order.push_back(&bench_case);
  for (int round = 0; round < warm_up + rounds; ++round) {
    if (round == warm_up) {
      for (Case& bench_case : cases) {
        bench_case.step_ms.clear();
        bench_case.step_bytes.clear();
      }
    }
    std::ranges::shuffle(order, shuffler);
    for (Case* const bench_case : order) take_turn(*bench_case);
  }
}

nlohmann::ordered_json judge(const Case& bench_case, const Case& none) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < none.step_ms.size(); ++round) {
    ratios.push_back(bench_case.step_ms[round] / none.step_ms[round]);
  }
  const examples::Interval interval = examples::median_interval(ratios);
  const double sent = examples::mean_over_ranks(examples::median(bench_case.step_bytes));
  return {{"shard", kolo::name_of(bench_case.shard)},
          {"step_ms_median", examples::median(bench_case.step_ms)},
          {"ratio_to_none", examples::median(ratios)},
          {"ratio_low", interval.low},
          {"ratio_high", interval.high},
          {"bytes_sent_per_step", sent},
          {"bytes_sent_ratio", sent / bench_case.bytes_to_send()}};
}

std::vector<kolo::Shard> all_modes() {
  return {kolo::Shard::None, kolo::Shard::Optimizer, kolo::Shard::Gradients, kolo::Shard::Full};
}

}  // namespace shard
