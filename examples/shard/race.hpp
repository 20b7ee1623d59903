#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kolo/shard.hpp"

/// Modes of sharding that train the same model, in turns.
namespace shard {

/// One mode in the race.
struct Case {
  kolo::Shard shard;
  std::int64_t parameters;
  std::function<void()> step;
  /// The bytes that a rank must send in a step, after one was taken.
  std::function<double()> bytes_to_send;
  /// Whether its operators are watched, if there is a watch: a watch covers the whole process.
  bool is_watched = shard == kolo::Shard::Full;
  std::vector<double> step_ms{};
  std::vector<double> step_bytes{};
};

/// All modes. The first is None, with which the others are compared.
std::vector<kolo::Shard> all_modes();

/// Takes one step of each case in every round, in a new random order, so that other load on the
/// machine affects all of them. A step's time is the mean over ranks, which begin it together. The
/// first `warm_up` rounds do not count. Collective.
void race(std::vector<Case>& cases, int warm_up, int rounds);

/// The times of a case relative to those of `none` in the same rounds, and the bytes that a rank
/// sends in a step. Collective.
nlohmann::ordered_json judge(const Case& bench_case, const Case& none);

}  // namespace shard
