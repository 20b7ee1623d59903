#include "bench/options.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include <CLI/CLI.hpp>

#include "bench/model_gradients.hpp"
#include "bench/rank.hpp"
#include "bench/workload.hpp"
#include "ops/registry.hpp"

namespace bench {
namespace {

using kolo::DType;

constexpr int kMaxIterations = 200;
constexpr std::size_t kBytesPerBlock = std::size_t{16} << 20;
// On a GPU, launch latency is hidden for all calls of a block but the first, so blocks are long.
constexpr int kMinIterationsOnGpu = 20;
constexpr std::size_t kBytesPerBlockOnGpu = std::size_t{4} << 30;
constexpr const char* kGradients = "gradients";
constexpr const char* kMpi = "mpi";
constexpr const char* kNccl = "nccl";
constexpr int kMaxCount = 1'000'000;

constexpr const char* kDescription =
    "Measures collectives by size and algorithm, or the reduction of a model's gradients.\n\n"
    "Starts its ranks itself (--np), or runs under mpirun. Each call works on data that was just "
    "written, after a barrier. The time of a block of calls is that of its slowest rank; blocks of "
    "all cases alternate. min and median are over blocks, per call; p99 is over calls. Results "
    "are checked; exit status 1: some were wrong. See docs/bench.md.\n";

std::map<std::string, DType> dtypes() {
  std::map<std::string, DType> types;
  for (int number = 0; number < kolo::kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (!kolo::is_complex(dtype)) types[std::string(kolo::name_of(dtype))] = dtype;
  }
  return types;
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names(kOperationNames.begin(), kOperationNames.end());
  names.emplace_back(kGradients);
  return names;
}

/// The values that --algorithm accepts.
std::vector<std::string> algorithm_names(const Options& options) {
  if (options.is_gradients() && options.is_on_gpu()) return {kTensors, kBuckets, kGroup};
  if (options.is_gradients()) return {kTensors, kBuckets, kCopiedBuckets, kGroup};
  if (options.is_on_gpu()) return {kWholePath};
  std::vector<std::string> names{kWholePath, kAllAlgorithms};
  const kolo::ops::Registry registry;
  for (const kolo::Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.collective == collective_of(options.operation) && algorithm.name != "adasum") {
      names.emplace_back(algorithm.name);
    }
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string find_mistake_in_sizes(const Options& options) {
  const std::size_t element = kolo::size_of(options.dtype);
  if (options.min_bytes < element) {
    return "--min is less than one element, which has " + std::to_string(element) + " bytes";
  }
  if (options.max_bytes < options.min_bytes) return "--max is less than --min";
  if (options.baseline == kMpi && options.max_bytes / element > std::numeric_limits<int>::max()) {
    return "--max is more than MPI can count";
  }
  return "";
}

std::string find_mistake_in_type(const Options& options) {
  if (is_reduction(options.operation) && options.dtype == DType::Bool) {
    return "--dtype bool: booleans cannot be added; use it with allgather, broadcast or alltoall";
  }
  if (options.is_on_gpu() && is_reduction(options.operation) && options.dtype == DType::Int16) {
    return "--dtype int16: NCCL cannot reduce it, so Kolo cannot on GPUs";
  }
  if (options.baseline == kMpi && !mpi_supports(options.operation, options.dtype)) {
    return "--dtype " + std::string(kolo::name_of(options.dtype)) +
           ": MPI cannot reduce it, so there is no baseline";
  }
  if (options.is_gradients() && !kolo::is_floating(options.dtype)) {
    return "--dtype " + std::string(kolo::name_of(options.dtype)) +
           ": gradients have a floating type";
  }
  return "";
}

std::string find_mistake_in_device(const Options& options) {
  if (!options.is_on_gpu()) {
    return options.baseline == kNccl ? "--baseline nccl: NCCL supports only GPUs; add --device cuda"
                                     : "";
  }
  if (options.baseline == kMpi) {
    return "--baseline mpi: plain MPI is measured in the CPU's memory; with --device cuda use "
           "--baseline nccl";
  }
  if (options.placements != Options().placements) {
    return "--placement: with --device cuda all tensors are in GPU memory; leave it out";
  }
  return "";
}

std::string find_mistake(const Options& options) {
  if (const std::string mistake = find_mistake_in_device(options); !mistake.empty()) return mistake;
  const std::vector<std::string> names = algorithm_names(options);
  for (const std::string& name : options.algorithms) {
    if (std::ranges::find(names, name) != names.end()) continue;
    return "--algorithm " + name + ": " +
           (options.is_gradients() ? kGradients : std::string(name_of(options.operation))) +
           " has none of that name; choose from " + joined(names);
  }
  if (options.is_gradients() && options.group > 1) {
    return "--group: gradients are measured as one group anyway";
  }
  const bool compresses = options.compressions != std::vector<std::string>{"none"};
  if (compresses && !is_reduction(options.operation)) {
    return "--compression: only allreduce, reduce_scatter and gradients are compressed";
  }
  if (options.rounds % 2 == 0) return "--rounds must be odd, so that one block is the median";
  if (const std::string mistake = find_mistake_in_type(options); !mistake.empty()) return mistake;
  return options.is_gradients() ? "" : find_mistake_in_sizes(options);
}

void add_workload_options(CLI::App& app, Options& options, std::string& what) {
  app.add_option("collective", what, "what to measure (default allreduce)")
      ->check(CLI::IsMember(operation_names()))
      ->type_name("NAME");
  app.add_option("--model", options.model, "model whose gradients are reduced; only with gradients")
      ->check(CLI::IsMember(model_names()))
      ->type_name("NAME");
  const CLI::AsSizeValue size(/*kb_is_1000=*/false);
  app.add_option("--min", options.min_bytes, "smallest buffer (default 1KB)")
      ->transform(size)
      ->type_name("SIZE");
  app.add_option("--max", options.max_bytes, "largest buffer (default 64MB)")
      ->transform(size)
      ->type_name("SIZE");
  app.add_option("--factor", options.factor,
                 "ratio of one size to the next smaller one (default 4)")
      ->check(CLI::Range(2, 1024));
  app.add_option_function<std::string>(
         "--dtype", [&options](const std::string& name) { options.dtype = dtypes().at(name); },
         "element type (default float32)")
      ->check(CLI::IsMember(dtypes()))
      ->type_name("NAME");
}

void add_method_options(CLI::App& app, Options& options, bool& wants_in_place) {
  app.add_option("--algorithm", options.algorithms,
                 "what to measure: names of algorithms, all algorithms (all), or the public calls "
                 "(kolo); for gradients tensors, buckets, copied_buckets, group. Default: the "
                 "algorithm that Kolo would choose, and kolo")
      ->delimiter(',')
      ->type_name("NAME");
  app.add_option("--placement", options.placements,
                 "staged: private memory; window: memory that the ranks share. Default: both")
      ->delimiter(',')
      ->check(CLI::IsMember({kStaged, kWindow}))
      ->type_name("NAME");
  app.add_flag("--in-place", wants_in_place, "the output overwrites the input (default)");
  app.add_flag("--out-of-place", options.out_of_place, "the output is separate memory");
  app.add_option("--compression", options.compressions,
                 "for public calls (kolo, tensors, …); default none")
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "fp16", "bf16"}))
      ->type_name("NAME");
  app.add_option("--group", options.group,
                 "split the buffer into a group of this many tensors (default 1)")
      ->check(CLI::Range(1, 10'000));
  app.add_option(
         "--iterations", options.iterations,
         "calls in a block. Default: as many as move 16 MB, at most 200; on GPUs 4 GB, 20 to "
         "200")
      ->check(CLI::Range(1, kMaxCount));
  app.add_option("--warmup", options.warmup, "rounds at the start, not counted (default 2)")
      ->check(CLI::Range(0, kMaxCount));
  app.add_option("--rounds", options.rounds,
                 "rounds, each of one block of every case; odd (default 15)")
      ->check(CLI::Range(1, kMaxCount));
}

void add_run_options(CLI::App& app, Options& options) {
  app.add_option("--np", options.np, "ranks to start, if not under mpirun (default 2)")
      ->check(CLI::Range(1, 4096));
  examples::add_device_option(app, options.device);
  app.add_option("--baseline", options.baseline,
                 "mpi: compare with plain MPI, in separate processes that alternate with Kolo's; "
                 "nccl, with --device cuda: compare with plain NCCL calls")
      ->check(CLI::IsMember({kMpi, kNccl}))
      ->type_name("NAME");
  app.add_option("--json", options.json, "write the results to this file, too")->type_name("FILE");
  app.add_option("--csv", options.csv, "write them as comma-separated values")->type_name("FILE");
  app.add_option("--plot", options.plot, "plot them as an SVG")->type_name("FILE");
  app.add_flag_callback(
      "--pairs", [&options] { options.mode = Mode::Pairs; },
      "measure messages between each two hosts, or ranks of one host, and a barrier, and end");
  app.add_flag_callback(
      "--config", [&options] { options.mode = Mode::PrintConfig; },
      "print all settings of the environment, and end");
  app.add_flag_callback(
      "--selfcheck", [&options] { options.mode = Mode::SelfCheck; },
      "print what limits this machine and what Kolo would choose on it, and end");
}

}  // namespace

std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv) {
  Options options;
  std::string what = "allreduce";
  bool wants_in_place = false;
  CLI::App app(kDescription, "kolo-bench");
  add_workload_options(app, options, what);
  add_method_options(app, options, wants_in_place);
  add_run_options(app, options);
  if (const auto exit = examples::parse_command_line(app, argc, argv)) return *exit;

  options.in_place = wants_in_place || !options.out_of_place;
  const auto wrong = [](const std::string& mistake) {
    return examples::Exit{2, mistake + "\nRun with --help for more information.\n"};
  };
  if ((what == kGradients) != options.is_gradients()) {
    return wrong("gradients and --model go together; models: " + joined(model_names()));
  }
  if (what != kGradients) {
    options.operation =
        static_cast<Operation>(std::ranges::find(kOperationNames, what) - kOperationNames.begin());
  }
  if (const std::string mistake = find_mistake(options); !mistake.empty()) return wrong(mistake);
  return options;
}

bool Options::wants(Operation what, bool is_in_place) const {
  const bool is_possible = is_in_place ? can_be_in_place(what) : can_be_out_of_place(what);
  const bool is_only_way = !can_be_in_place(what) || !can_be_out_of_place(what);
  return is_possible && (is_only_way || (is_in_place ? in_place : out_of_place));
}

std::vector<std::size_t> sizes_of(const Options& options) {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    sizes.push_back(bytes);
  }
  return sizes;
}

int iterations_of(const Options& options, std::size_t bytes) {
  if (options.iterations > 0) return options.iterations;
  if (options.is_on_gpu()) {
    return static_cast<int>(
        std::clamp<std::size_t>(kBytesPerBlockOnGpu / bytes, kMinIterationsOnGpu, kMaxIterations));
  }
  return static_cast<int>(std::clamp<std::size_t>(kBytesPerBlock / bytes, 1, kMaxIterations));
}

}  // namespace bench
