#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "bench/workload.hpp"
#include "common/command_line.hpp"
#include "kolo/tensor_view.hpp"

namespace bench {

/// The --algorithm value for Kolo's whole public path, as opposed to a bare algorithm.
inline constexpr const char* kWholePath = "kolo";
/// The same for gradients: one named operation per tensor, all in flight together; in buckets; as
/// one group.
inline constexpr const char* kTensors = "tensors";
inline constexpr const char* kBuckets = "buckets";
inline constexpr const char* kCopiedBuckets = "copied_buckets";  ///< gradients are copied in first
inline constexpr const char* kGroup = "group";
/// All bare algorithms that can run.
inline constexpr const char* kAllAlgorithms = "all";

inline constexpr const char* kStaged = "staged";
inline constexpr const char* kWindow = "window";
/// GPU memory.
inline constexpr const char* kDevice = "device";

enum class Mode { Measure, Pairs, PrintConfig, SelfCheck };

/// The command line of kolo-bench.
struct Options {
  Mode mode = Mode::Measure;
  Operation operation = Operation::AllReduce;
  kolo::DeviceKind device = kolo::DeviceKind::Cpu;  ///< where the tensors are
  std::string model;  ///< whose gradients to reduce; empty: buffers of growing size
  std::size_t min_bytes = std::size_t{1} << 10;
  std::size_t max_bytes = std::size_t{64} << 20;
  std::size_t factor = 4;
  kolo::DType dtype = kolo::DType::Float32;
  std::vector<std::string> algorithms;  ///< empty: the library's choice, and the whole path
  std::vector<std::string> placements{kStaged, kWindow};  ///< of tensors in CPU memory
  bool in_place = true;
  bool out_of_place = false;
  std::vector<std::string> compressions{"none"};
  int group = 1;       ///< tensors in a group
  int iterations = 0;  ///< calls in a block; 0: depends on the size
  int warmup = 2;      ///< uncounted rounds at the start
  int rounds = 15;
  int np = 0;                  ///< ranks to start; 0: not specified
  std::string baseline;        ///< "mpi", "nccl", or none
  std::filesystem::path json;  ///< empty: no file
  std::filesystem::path csv;
  std::filesystem::path plot;

  /// The number of ranks to start, unless a launcher has started them.
  int ranks_to_start() const { return np > 0 ? np : 2; }
  bool is_gradients() const { return !model.empty(); }
  bool is_on_gpu() const { return device == kolo::DeviceKind::Cuda; }
  bool has_baseline() const { return !baseline.empty(); }
  /// Whether to measure the operation in place or out of place. If only one of them is possible,
  /// that one is measured regardless of the flags.
  bool wants(Operation what, bool is_in_place) const;
};

/// The options, or how to exit after --help or an error.
std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv);

/// The buffer sizes to measure, in bytes.
std::vector<std::size_t> sizes_of(const Options& options);

/// The number of calls in a block of buffers of `bytes`.
int iterations_of(const Options& options, std::size_t bytes);

}  // namespace bench
