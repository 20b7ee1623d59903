#include "programs/run_in_processes.hpp"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include <mpi.h>

#include "programs/agreement.hpp"
#include "programs/rank_runner.hpp"
#include "programs/watch.hpp"

namespace kolo::programs {
namespace {

template <class T>
void append(std::string& text, const std::vector<T>& values) {
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// The next `count` values in `text`, starting at `place`.
template <class T>
std::vector<T> take(const std::string& text, std::size_t& place, std::size_t count) {
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), text.data() + place, count * sizeof(T));
  place += count * sizeof(T);
  return values;
}

Outcome run_this_rank(const Program& program, Watch& watch, int rank) {
  Outcome outcome{std::vector<std::uint64_t>(program.operations.size()),
                  std::vector<int>(static_cast<std::size_t>(program.joinings), -1)};
  try {
    Runtime runtime(init_options(program, nullptr));
    RankRunner runner(program, runtime, watch, nullptr);
    runner.run();
    outcome = {runner.digests(), runner.last_joined()};
  } catch (const std::exception& error) {
    watch.fail(rank, error.what());
  }
  return outcome;
}

}  // namespace

std::string run_in_processes(const Program& program, test::MpiRanks& ranks,
                             const RunOptions& options) {
  Watch watch(program, options.trace);
  const Alarm alarm(options.limit, [&] {
    const std::string text = ranks.prefix() + "HANG in seed " + std::to_string(program.seed) +
                             "\n" + watch.state(ranks.rank()) + watch.failures() +
                             "  replay: " + options.replay + "\n";
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
  });
  const Outcome own = run_this_rank(program, watch, ranks.rank());

  const std::string place = "end of seed " + std::to_string(program.seed);
  std::string failures;
  for (const std::string& text : ranks.gather_on_first(watch.failures(), place)) failures += text;
  std::string seen;
  append(seen, own.digests);
  append(seen, own.last_joined);
  std::vector<Outcome> outcomes;
  for (const std::string& text : ranks.gather_on_first(seen, place)) {
    std::size_t at = 0;
    Outcome& outcome = outcomes.emplace_back();
    outcome.digests = take<std::uint64_t>(text, at, own.digests.size());
    outcome.last_joined = take<int>(text, at, own.last_joined.size());
  }
  if (ranks.rank() == 0 && failures.empty()) failures = disagreement(program, outcomes);
  return ranks.broadcast(failures, 0, place);
}

}  // namespace kolo::programs
