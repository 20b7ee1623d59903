#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace kolo {

/// Every knob, read once from the environment when a Runtime starts and compared across ranks.
/// One row of the table in src/base/config.cpp describes each: name, type, unit, default, range.
/// Values are strict: sizes "64MB" (powers of 1024: KB, MB, GB; or plain bytes), durations "250ms",
/// "10s", "5min", switches "on" / "off". Anything else throws InvalidArgument, which shows the
/// accepted form.
struct Config {
  using Duration = std::chrono::nanoseconds;

  // Behaviour.
  Duration timeout = std::chrono::minutes(30);     ///< KOLO_TIMEOUT: deadline of an operation
  Duration stall_warn = std::chrono::seconds(60);  ///< KOLO_STALL_WARN: wait before a report; 0 off
  Duration lost_after = std::chrono::seconds(10);  ///< KOLO_LOST_AFTER: silence past a deadline
                                                   ///< after which a rank counts as lost
  bool fusion = true;         ///< KOLO_FUSION: small tensors that are ready together run as one
  bool shared_memory = true;  ///< KOLO_SHARED_MEMORY: use it inside a node
  int fake_nodes = 0;         ///< KOLO_FAKE_NODES: split the ranks into so many nodes; 0: real ones
  bool share_gpu = false;     ///< KOLO_SHARE_GPU: several ranks may use one GPU, to try things out
  std::string allgather;      ///< KOLO_ALLGATHER: algorithm by name; empty: the fastest that fits
  std::string alltoall;       ///< KOLO_ALLTOALL
  std::string broadcast;      ///< KOLO_BROADCAST
  std::string reduce_scatter;  ///< KOLO_REDUCE_SCATTER
  std::string allreduce;       ///< KOLO_ALLREDUCE: algorithm by name; empty: the fastest that fits
  std::string shard =
      "none";  ///< KOLO_SHARD: what DistributedOptimizer divides unless told (Shard)
  std::string log_level = "warn";  ///< KOLO_LOG_LEVEL: error, warn, info, debug

  // Speed.
  Duration patience = std::chrono::milliseconds(5);   ///< KOLO_PATIENCE: age at which a tensor that
                                                      ///< nobody predicted asks for an exchange
  Duration spin = std::chrono::microseconds(20);      ///< KOLO_SPIN: busy wait before sleeping
  std::size_t fusion_bytes = std::size_t{512} << 10;  ///< KOLO_FUSION_BYTES: largest fused batch
  std::size_t segment_bytes = std::size_t{256} << 10;  ///< KOLO_SEGMENT_BYTES: chunk and message
  std::size_t staging_bytes = std::size_t{4} << 20;  ///< KOLO_STAGING_BYTES: window per lane, rank
  int table_capacity = 2048;  ///< KOLO_TABLE_CAPACITY: known requests kept per process set
  int tree_width = 8;         ///< KOLO_TREE_WIDTH: children of a rank in the control tree

  /// Reads the environment; unset variables keep their defaults.
  static Config from_environment();
};

/// One knob as text, for tables and comparison across ranks.
struct ConfigEntry {
  std::string variable;
  std::string value;
  std::string default_value;
  std::string unit;
  std::string range;
  std::string help;
};

/// All knobs with the values that `config` holds, in the table's order.
std::vector<ConfigEntry> describe(const Config& config);

}  // namespace kolo
