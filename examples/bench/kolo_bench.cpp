// Times Kolo's all-reduce, algorithm by algorithm, against MPI_Allreduce.
//
//   mpirun -np 2 kolo-bench --help
#include <cstdio>
#include <fstream>

#include <mpi.h>
#include <nlohmann/json.hpp>

#include "bench/contestants.hpp"
#include "bench/measurement.hpp"
#include "bench/options.hpp"
#include "common/agreement.hpp"
#include "kolo/error.hpp"

namespace {

constexpr int kWrongElements = 1;
constexpr int kWrongUsage = 2;

/// MPI as any program has it, which Kolo joins.
class Mpi {
 public:
  Mpi(int argc, char** argv) {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  }
  Mpi(const Mpi&) = delete;  // MPI is started once
  Mpi& operator=(const Mpi&) = delete;
  ~Mpi() { MPI_Finalize(); }

  bool is_first() const {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == 0;
  }
};

void print_head(const bench::Options& options) {
  std::printf("all-reduce, sum of %s, in place, %d ranks\n",
              std::string(kolo::name_of(options.dtype)).c_str(), kolo::size());
  std::printf("%11s %11s  %-14s %11s %11s %10s %8s %7s %8s\n", "bytes", "count", "algorithm",
              "min us", "median us", "alg. GB/s", "bus GB/s", "wrong", "x of MPI");
}

void print(const bench::Measurement& row) {
  std::printf("%11zu %11zu  %-14s %11.1f %11.1f %10.3f %8.3f %7zu %8.2f\n", row.bytes, row.count,
              row.algorithm.c_str(), row.min_us, row.median_us, row.algorithm_gb_per_s,
              row.bus_gb_per_s, row.wrong_elements, row.ratio_to_mpi);
}

nlohmann::ordered_json to_json(const bench::Measurement& row) {
  return {{"bytes", row.bytes},
          {"count", row.count},
          {"algorithm", row.algorithm},
          {"min_us", row.min_us},
          {"median_us", row.median_us},
          {"algorithm_gb_per_s", row.algorithm_gb_per_s},
          {"bus_gb_per_s", row.bus_gb_per_s},
          {"wrong_elements", row.wrong_elements},
          {"ratio_to_mpi", row.ratio_to_mpi}};
}

int run(const bench::Options& options) {
  const bench::Contestants contestants(options);
  const bool speaks = kolo::rank() == 0;
  std::ofstream json;
  if (speaks && !options.json.empty()) json.open(options.json);
  const std::string problem = json ? "" : "cannot write " + options.json.string();
  if (!examples::all_ranks_succeeded(problem)) return kWrongUsage;

  nlohmann::ordered_json report{{"ranks", kolo::size()}, {"dtype", kolo::name_of(options.dtype)}};
  std::size_t wrong = 0;
  if (speaks) print_head(options);
  for (const std::size_t bytes : bench::sizes_of(options)) {
    for (const bench::Measurement& row : bench::measure(contestants.all(), options, bytes)) {
      wrong += row.wrong_elements;
      if (speaks) print(row);
      report["results"].push_back(to_json(row));
    }
    std::fflush(stdout);
  }
  if (json.is_open()) json << report.dump(2) << '\n';
  return wrong == 0 ? 0 : kWrongElements;
}

}  // namespace

int main(int argc, char** argv) {
  const Mpi mpi(argc, argv);
  const auto parsed = bench::parse_options(argc, argv, bench::algorithm_names());
  if (const auto* exit = std::get_if<examples::Exit>(&parsed)) {
    return examples::leave(*exit, mpi.is_first());
  }
  try {
    return run(std::get<bench::Options>(parsed));
  } catch (const kolo::InvalidArgument& error) {  // found by all ranks alike
    return examples::leave({kWrongUsage, std::string(error.what()) + '\n'}, mpi.is_first());
  }
}
