#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace kolo {

/// All settings of Kolo, read from the environment when a Runtime starts. All must be
/// equal on all ranks but `log_level` and `mpi_library`.
///
/// Each field but `tuning` is one variable: `stall_warn` is KOLO_STALL_WARN. docs/settings.md
/// describes them; it is generated from the table in src/base/config.cpp, which holds their help,
/// units and ranges.
/// Durations are written "250ms", "10s", "5min"; sizes "64MB" (powers of 1024) or in bytes;
/// switches "on" or "off".
struct Config {
  using Duration = std::chrono::nanoseconds;

  Duration timeout = std::chrono::minutes(30);
  Duration stall_warn = std::chrono::seconds(60);
  Duration lost_after = std::chrono::seconds(10);
  Duration start_timeout = std::chrono::minutes(2);
  bool fusion = true;
  bool shared_memory = true;
  int fake_nodes = 0;
  bool share_gpu = false;
  std::string nccl_algo = "ring";
  std::string launcher = "auto";
  std::string mpi_library = "auto";
  std::string rendezvous;
  std::string algorithm;
  std::string shard = "none";
  std::string log_level = "warn";
  std::string record = "auto";
  std::string timeline;
  std::string metrics;
  std::string metrics_labels;

  std::size_t fusion_bytes = std::size_t{512} << 10;

  /// The engine's own values, which no variable sets, nothing checks and only Kolo's tests change;
  /// equal on all ranks.
  struct Tuning {
    /// How long a request that was not predicted waits before it asks all ranks for an exchange.
    /// Larger: fewer, larger exchanges. Smaller: an unexpected order costs less time.
    Duration patience = std::chrono::milliseconds(5);
    /// How long a waiting caller spins before it yields, then sleeps; not where ranks share cores.
    Duration spin = std::chrono::microseconds(20);
    /// Longest message, and the size of a chunk in shared memory; a multiple of 64.
    std::size_t segment_bytes = std::size_t{256} << 10;
    /// Shared memory per rank and process set for tensors that are not in shared memory; a multiple
    /// of 64. An all-to-all needs some 200 bytes for each rank of a node.
    std::size_t staging_bytes = std::size_t{4} << 20;
    /// Requests that a process set remembers; those in use may exceed this number. At most 8192.
    std::size_t table_capacity = 2048;
    /// Children of a rank in the tree of ranks that negotiates requests.
    int tree_width = 8;
  };
  Tuning tuning{};

  /// Reads the environment; unset variables keep their defaults.
  /// @throws InvalidArgument naming the variable, its value and the accepted form
  static Config from_environment();

  /// @throws InvalidArgument naming the variable of a field that is out of its range
  void validate() const;
};

/// One setting as text.
struct ConfigEntry {
  std::string variable;
  std::string value;
  std::string default_value;
  std::string unit;
  std::string range;
  std::string help;
};

/// @return all settings with the values that `config` holds, in the table's order
std::vector<ConfigEntry> describe(const Config& config);

/// One text per variable of the environment that has no effect but looks like a setting: it was
/// one, or differs from the name of one by at most two letters. A Runtime warns of them on rank 0.
std::vector<std::string> ignored_settings();

}  // namespace kolo
#pragma GCC visibility pop
