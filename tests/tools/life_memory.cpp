// Checks that process sets and Runtimes that have ended leave nothing behind: memory, mappings,
// descriptors, threads.
//
//   mpirun -np 2 life_memory sets [n]      adds, uses and removes n process sets; 10,000 by default
//   mpirun -np 2 life_memory runtimes [n]  makes, uses and destroys n Runtimes; 1,000 by default
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
    kolo::ProcessSet& set = runtime.add_process_set(everybody);
    first.on(set);
    runtime.remove_process_set(set);
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

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const bool is_sets = what == "sets";
  if (!is_sets && what != "runtimes") {
    std::fprintf(stderr, "usage: life_memory sets|runtimes [n]\n");
    return 2;
  }
  const std::int64_t count = argc > 2 ? std::atoll(argv[2]) : is_sets ? 10'000 : 1'000;
  int rank = 0;
  const bool is_good = is_sets ? sets_are_flat(count) : runtimes_are_flat(count, rank);
  std::printf("%s: %s\n", what.c_str(), is_good ? "flat" : "growing");
  return is_good ? 0 : 1;
}
