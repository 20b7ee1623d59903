#include "bench/measurement.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include <mpi.h>

#include "common/statistics.hpp"

namespace bench {
namespace {

using kolo::DType;

constexpr int kRounds = 15;

// Values that differ per rank and element, and whose sums are exact in every type.
constexpr int kPeriod = 97;
int value_at(std::size_t index) { return 1 + static_cast<int>(index % kPeriod); }

template <class Function>
auto with_elements(DType dtype, std::byte* buffer, Function function) {
  switch (dtype) {
    case DType::Int32: return function(reinterpret_cast<std::int32_t*>(buffer));
    case DType::Int64: return function(reinterpret_cast<std::int64_t*>(buffer));
    case DType::Float64: return function(reinterpret_cast<double*>(buffer));
    default: return function(reinterpret_cast<float*>(buffer));
  }
}

std::size_t count_wrong_elements(const Contestant& contestant, DType dtype, std::size_t count) {
  const int rank = kolo::rank();
  const int size = kolo::size();
  return with_elements(dtype, contestant.buffer, [&]<class T>(T* elements) {
    for (std::size_t i = 0; i < count; ++i) {
      elements[i] = static_cast<T>((rank + 1) * value_at(i));
    }
    contestant.all_reduce(count);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wrong += elements[i] != static_cast<T>(size * (size + 1) / 2 * value_at(i));
    }
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return static_cast<std::size_t>(wrong);
  });
}

// Microseconds of one call, on the slowest rank. Every rank writes its whole buffer before each call,
// as programs do: otherwise what a rank wrote last time would still lie in its own cache.
double time_block(const Contestant& contestant, std::size_t bytes, std::size_t count,
                  int iterations) {
  using Clock = std::chrono::steady_clock;
  Clock::duration duration{};
  for (int i = 0; i < iterations; ++i) {
    std::memset(contestant.buffer, 0, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = Clock::now();
    contestant.all_reduce(count);
    duration += Clock::now() - start;
  }
  double slowest = std::chrono::duration<double, std::micro>(duration).count() / iterations;
  MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

}  // namespace

std::vector<Measurement> measure(const std::vector<Contestant>& contestants, const Options& options,
                                 std::size_t bytes) {
  const std::size_t count = bytes / kolo::size_of(options.dtype);
  const int iterations = iterations_of(options, bytes);
  std::vector<std::vector<double>> times(contestants.size());
  for (int round = -options.warmup; round < kRounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const double time = time_block(contestants[i], bytes, count, iterations);
      if (round >= 0) times[i].push_back(time);
    }
  }
  std::vector<Measurement> results;
  const double ranks = kolo::size();
  const double mpi = examples::median(times.front());
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    const double median = examples::median(times[i]);
    const double gb_per_s = static_cast<double>(bytes) / median / 1e3;
    results.push_back({.bytes = bytes,
                       .count = count,
                       .algorithm = contestants[i].name,
                       .min_us = *std::ranges::min_element(times[i]),
                       .median_us = median,
                       .algorithm_gb_per_s = gb_per_s,
                       .bus_gb_per_s = gb_per_s * 2 * (ranks - 1) / ranks,
                       .wrong_elements = count_wrong_elements(contestants[i], options.dtype, count),
                       .ratio_to_mpi = median / mpi});
  }
  return results;
}

}  // namespace bench
