#include "bench/pairs.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "common/statistics.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/messages.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShort = 8;
constexpr std::size_t kLong = std::size_t{4} << 20;
constexpr int kRounds = 9;
constexpr double kSlow = 1.5;  // times the median: a pair to look at

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// The median time of a message one way, half of a round trip, between this rank and `other`.
double time_messages(std::size_t bytes, int other, bool is_first, int trips) {
  std::vector<std::uint8_t> memory(bytes);
  const kolo::TensorView view{
      memory.data(), kolo::DType::UInt8, {static_cast<std::int64_t>(bytes)}};
  std::vector<double> times;
  for (int round = 0; round <= kRounds; ++round) {  // the first warms up
    const auto begin = Clock::now();
    for (int trip = 0; trip < trips; ++trip) {
      if (is_first) kolo::send(view, other);
      kolo::receive(view, other);
      if (!is_first) kolo::send(view, other);
    }
    if (round > 0) times.push_back(us_since(begin) / 2 / trips);
  }
  return examples::median(times);
}

/// Of all ranks, on all ranks.
std::vector<double> gather(double own) {
  std::vector<double> all(static_cast<std::size_t>(kolo::size()));
  const kolo::TensorView view{&own, kolo::DType::Float64, {1}};
  kolo::allgather(view, [&](const std::vector<std::int64_t>&) { return all.data(); });
  return all;
}

/// The ranks to pair: the first of each host, or all of one host.
std::vector<int> ranks_to_pair() {
  std::vector<int> ranks;
  const auto is_first = gather(kolo::local_rank() == 0 ? 1.0 : 0.0);
  for (int rank = 0; rank < kolo::size(); ++rank) {
    if (kolo::cross_size() == 1 || is_first[static_cast<std::size_t>(rank)] > 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

using Matrix = std::vector<std::vector<double>>;

void print(const char* head, const Matrix& matrix, const std::vector<int>& ranks, int digits) {
  std::printf("%s\n%9s", head, "");
  for (const int rank : ranks) std::printf(" %8s", ("rank " + std::to_string(rank)).c_str());
  for (std::size_t row = 0; row < ranks.size(); ++row) {
    std::printf("\n%9s", ("rank " + std::to_string(ranks[row])).c_str());
    for (std::size_t column = 0; column < ranks.size(); ++column) {
      if (row == column) {
        std::printf(" %8s", "-");
      } else {
        std::printf(" %8.*f", digits, matrix[row][column]);
      }
    }
  }
  std::printf("\n");
}

/// Names the pairs that are much slower than the others.
void print_slow(const Matrix& times, const std::vector<int>& ranks,
                const std::vector<std::string>& hosts) {
  std::vector<double> all;
  for (std::size_t row = 0; row < times.size(); ++row) {
    all.insert(all.end(), times[row].begin() + static_cast<std::ptrdiff_t>(row) + 1,
               times[row].end());
  }
  const double usual = examples::median(all);
  for (std::size_t row = 0; row < times.size(); ++row) {
    for (std::size_t column = row + 1; column < times.size(); ++column) {
      if (times[row][column] < kSlow * usual) continue;
      std::printf("slow: ranks %d on %s and %d on %s take %.1f times as long as the median pair\n",
                  ranks[row], hosts[row].c_str(), ranks[column], hosts[column].c_str(),
                  times[row][column] / usual);
    }
  }
  std::printf("\n");
}

void measure_messages(const std::vector<int>& ranks, const std::vector<std::string>& hosts,
                      std::size_t bytes, int trips) {
  Matrix times(ranks.size(), std::vector<double>(ranks.size()));
  for (std::size_t row = 0; row < ranks.size(); ++row) {
    for (std::size_t column = row + 1; column < ranks.size(); ++column) {
      const auto [first, second] = std::pair(ranks[row], ranks[column]);
      const bool is_first = kolo::rank() == first;
      const bool takes_part = is_first || kolo::rank() == second;
      kolo::barrier();
      const double own =
          takes_part ? time_messages(bytes, is_first ? second : first, is_first, trips) : 0.0;
      const double time = gather(own)[static_cast<std::size_t>(first)];
      times[row][column] = times[column][row] = time;
    }
  }
  if (kolo::rank() != 0) return;
  if (bytes <= kShort) {
    print("message of 8 bytes, one way, us", times, ranks, 2);
  } else {
    Matrix gbps = times;
    for (std::vector<double>& row : gbps) {
      for (double& value : row) value = static_cast<double>(bytes) / value / 1e3;
    }
    print("messages of 4 MB, GB/s", gbps, ranks, 3);
  }
  print_slow(times, ranks, hosts);
}

void measure_barrier() {
  constexpr int kCalls = 1000;
  std::vector<double> times;
  for (int round = 0; round <= kRounds; ++round) {
    const auto begin = Clock::now();
    for (int call = 0; call < kCalls; ++call) kolo::barrier();
    if (round > 0) times.push_back(us_since(begin) / kCalls);
  }
  const std::vector<double> all = gather(examples::median(times));
  if (kolo::rank() != 0) return;
  std::printf("barrier of %d ranks, us: least %.2f, mean %.2f, greatest %.2f over ranks\n",
              kolo::size(), *std::ranges::min_element(all),
              std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()),
              *std::ranges::max_element(all));
}

}  // namespace

void measure_pairs() {
  const std::vector<int> ranks = ranks_to_pair();
  if (ranks.size() < 2) {
    throw kolo::InvalidArgument("--pairs: there is one rank. Start several: --np 2");
  }
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::vector<std::string> hosts;
  const auto names = kolo::allgather_object(name.data());
  for (const int rank : ranks) hosts.push_back(names[static_cast<std::size_t>(rank)]);
  measure_messages(ranks, hosts, kShort, 200);
  measure_messages(ranks, hosts, kLong, 3);
  measure_barrier();
}

}  // namespace bench
