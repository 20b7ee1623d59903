// Checks that process sets, Runtimes and operations that have ended leave nothing behind: memory,
// mappings, descriptors, threads.
//
//   mpirun -np 2 life_memory sets [n]      adds, uses and removes n process sets; 10,000 by default
//   mpirun -np 2 life_memory runtimes [n]  makes, uses and destroys n Runtimes; 1,000 by default
//   mpirun -np 2 life_memory operations [n]  n unnamed all-reduces; 1,000,000 by default
//
// Prints what each rank holds after every tenth. Exit code 1 where the second half added anything,
// or where shared memory ran out: with a small /dev/shm too, each new set shares memory.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"
#include "tools/resources.hpp"

namespace {

using kolo::test::is_flat;
using kolo::test::Resources;
using kolo::test::with_small_table;

void sum(kolo::ProcessSet& set) {
  float value = 1.0F;
  const kolo::TensorView view{&value, kolo::DType::Float32, {1}, {}};
  kolo::allreduce(view, view, {.op = kolo::ReduceOp::Sum, .process_set = &set});
  if (value != static_cast<float>(set.size())) std::abort();
}

/// Sums on new sets of ranks of one host, which must share memory each time.
class FirstSum {
 public:
  void on(kolo::ProcessSet& set) {
    sum(set);
    const std::int64_t mappings = Resources::now().shared_mappings;
    if (least_ < 0) least_ = mappings;
    if (mappings >= least_) return;
    std::fprintf(stderr, "rank %d: %lld shared mappings, %lld before: no shared memory is left\n",
                 set.rank(), static_cast<long long>(mappings), static_cast<long long>(least_));
    std::exit(1);
  }

 private:
  std::int64_t least_ = -1;
};

bool sets_are_flat(std::int64_t count) {
  kolo::Runtime runtime(with_small_table());
  std::vector<int> everybody(static_cast<std::size_t>(runtime.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  FirstSum first;
  return is_flat("process sets", count, runtime.rank(), [&] {
    for (const kolo::Matching matching : {kolo::Matching::ByName, kolo::Matching::ByOrder}) {
      kolo::ProcessSet& set = runtime.add_process_set(everybody, matching);
      first.on(set);
      runtime.remove_process_set(set);
    }
  });
}

bool runtimes_are_flat(std::int64_t count, int& rank) {
  {
    rank = kolo::Runtime(with_small_table()).rank();
  }
  FirstSum first;
  return is_flat("Runtimes", count, rank, [&] {
    kolo::Runtime runtime(with_small_table());
    first.on(runtime.world());
  });
}

bool operations_are_flat(std::int64_t count) {
  kolo::Runtime runtime(with_small_table());
  const auto cycle = [&] { sum(runtime.world()); };
  return is_flat("operations", count, runtime.rank(), cycle, /*bytes_a_cycle=*/0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const std::int64_t given = argc > 2 ? std::atoll(argv[2]) : 0;
  const auto count = [&](std::int64_t usual) { return given > 0 ? given : usual; };
  bool is_good = false;
  int rank = 0;
  if (what == "sets") {
    is_good = sets_are_flat(count(10'000));
  } else if (what == "runtimes") {
    is_good = runtimes_are_flat(count(1'000), rank);
  } else if (what == "operations") {
    is_good = operations_are_flat(count(1'000'000));
  } else {
    std::fprintf(stderr, "usage: life_memory sets|runtimes|operations [n]\n");
    return 2;
  }
  std::printf("%s: %s\n", what.c_str(), is_good ? "flat" : "growing");
  return is_good ? 0 : 1;
}
