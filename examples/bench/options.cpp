#include "bench/options.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include <CLI/CLI.hpp>

namespace bench {
namespace {

using kolo::DType;

// What MPI can reduce too.
const std::map<std::string, DType> kDTypes{{"int32", DType::Int32},
                                           {"int64", DType::Int64},
                                           {"float32", DType::Float32},
                                           {"float64", DType::Float64}};

constexpr int kMostIterations = 200;
constexpr std::size_t kBytesInABlock = std::size_t{16} << 20;

std::string find_mistake(const Options& options) {
  const std::size_t element = kolo::size_of(options.dtype);
  if (options.min_bytes < element) {
    return "--min is less than one element, which has " + std::to_string(element) + " bytes";
  }
  if (options.max_bytes < options.min_bytes) return "--max is less than --min";
  if (options.max_bytes / element > std::numeric_limits<int>::max()) {
    return "--max is more than MPI_Allreduce can count";
  }
  return "";
}

}  // namespace

std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv,
                                                    const std::vector<std::string>& algorithms) {
  Options options;
  CLI::App app(
      "Times all-reduce (sum, in place) by size and algorithm, next to MPI_Allreduce in the same "
      "processes, in 15 rounds of one block of calls each, every call on data just written. A "
      "block's time is that of its slowest rank; µs are those of one call, minimum and median over "
      "the blocks.\n"
      "bus GB/s = bytes / median * 2 (n-1) / n: what each of n ranks must send at least.\n",
      "kolo-bench");
  const CLI::AsSizeValue size(/*kb_is_1000=*/false);
  app.add_option("--min", options.min_bytes, "smallest buffer, as in 1KB")
      ->transform(size)
      ->type_name("SIZE");
  app.add_option("--max", options.max_bytes, "largest buffer, as in 64MB")
      ->transform(size)
      ->type_name("SIZE");
  app.add_option("--factor", options.factor, "from one size to the next")
      ->check(CLI::Range(2, 1024));
  app.add_option_function<std::string>(
         "--dtype", [&options](const std::string& name) { options.dtype = kDTypes.at(name); },
         "element type")
      ->check(CLI::IsMember(&kDTypes))
      ->type_name("NAME");
  app.add_option("--algorithm", options.algorithms,
                 "measure this one; may be given several times. kolo is kolo::allreduce with "
                 "all its coordination, kolo_shared the same on a SharedBuffer, the others are "
                 "bare algorithms. Default: all that fit")
      ->check(CLI::IsMember(algorithms))
      ->type_name("NAME");
  app.add_option("--iterations", options.iterations,
                 "calls in a block; by default as many as reduce 16 MB, at most 200")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--warmup", options.warmup, "blocks that are not counted")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--json", options.json, "write the results to this file too")->type_name("FILE");
  if (const auto exit = examples::parse_command_line(app, argc, argv)) return *exit;
  if (const std::string mistake = find_mistake(options); !mistake.empty()) {
    return examples::Exit{2, mistake + "\nRun with --help for more information.\n"};
  }
  return options;
}

std::vector<std::size_t> sizes_of(const Options& options) {
  const std::size_t element = kolo::size_of(options.dtype);
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    sizes.push_back(bytes / element * element);
  }
  return sizes;
}

int iterations_of(const Options& options, std::size_t bytes) {
  if (options.iterations > 0) return options.iterations;
  return static_cast<int>(std::clamp<std::size_t>(kBytesInABlock / bytes, 1, kMostIterations));
}

}  // namespace bench
