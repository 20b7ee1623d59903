#include "kolo/config.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <variant>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "kolo/shard.hpp"

namespace kolo {
namespace {

using Duration = Config::Duration;
using Field = std::variant<Duration Config::*, std::size_t Config::*, int Config::*, bool Config::*,
                           std::string Config::*>;

/// One setting. Bounds are in nanoseconds for durations and in bytes for sizes.
/// After changing the table: build/release/tests/settings_page > docs/settings.md
struct Setting {
  std::string_view variable;
  Field field;
  std::int64_t lowest;
  std::int64_t highest;
  std::string_view help;
};

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kYear = kSecond * 365 * 24 * 3600;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

constexpr std::array<Unit, 6> kDurationUnits{{{"min", 60 * kSecond},
                                              {"ns", 1},
                                              {"us", 1'000},
                                              {"ms", 1'000'000},
                                              {"s", kSecond},
                                              {"h", 3600 * kSecond}}};
constexpr std::array<Unit, 4> kSizeUnits{
    {{"KB", std::int64_t{1} << 10}, {"MB", kMiB}, {"GB", std::int64_t{1} << 30}, {"B", 1}}};

const std::array kSettings{
    Setting{"KOLO_TIMEOUT", &Config::timeout, 1'000'000, kYear,
            "Deadline of an operation: the time from its submission until all ranks have submitted "
            "it."},
    Setting{"KOLO_STALL_WARN", &Config::stall_warn, 0, kYear,
            "Wait after which a report names the ranks that an operation waits for; 0s: never."},
    Setting{"KOLO_LOST_AFTER", &Config::lost_after, 0, kYear,
            "How long a host, or a rank at a deadline or in a shutdown, may stay silent before it "
            "counts as lost; for hosts at least 1s; 0s: forever."},
    Setting{"KOLO_START_TIMEOUT", &Config::start_timeout, 1'000'000, kYear,
            "How long a rank waits at startup for the other ranks."},
    Setting{
        "KOLO_FUSION", &Config::fusion, 0, 1,
        "Run small tensors that are ready together as one batch. Off: every tensor runs alone, so "
        "that the bits of results do not depend on timing."},
    Setting{"KOLO_SHARED_MEMORY", &Config::shared_memory, 0, 1,
            "Use shared memory between ranks of a node."},
    Setting{"KOLO_FAKE_NODES", &Config::fake_nodes, 0, 1 << 20,
            "Number of groups of ranks that act as nodes, for experiments; 0: the real nodes."},
    Setting{"KOLO_SHARE_GPU", &Config::share_gpu, 0, 1,
            "Let several ranks use one GPU, for experiments: slow. Off: each rank needs its own."},
    Setting{
        "KOLO_NCCL_ALGO", &Config::nccl_algo, 0, 0,
        "Algorithms of NCCL on GPUs. ring: sets NCCL_ALGO=Ring unless it is set already, for all "
        "users of NCCL in the process. auto: NCCL chooses (Tree, NVLS, CollNet and others)."},
    Setting{
        "KOLO_LAUNCHER", &Config::launcher, 0, 0,
        "auto: detect from the launcher whether there are other ranks. mpi: ask MPI, for launchers "
        "that Kolo does not know. none: the process is a world of one rank, unless it has "
        "initialized MPI or passes a store."},
    Setting{
        "KOLO_MPI_LIBRARY", &Config::mpi_library, 0, 0,
        "File of the MPI library, which is loaded when ranks start over MPI, unless the program "
        "has "
        "one. auto: that of the mpirun that started the program; else libmpi.so.40 (Open MPI) or "
        "libmpi.so.12 (MPICH, Intel MPI and others), as the loader finds them."},
    Setting{
        "KOLO_RENDEZVOUS", &Config::rendezvous, 0, 0,
        "A folder that all hosts see, one for each job that runs, where ranks find each other "
        "without MPI. KOLO_RANK and KOLO_SIZE say which rank of how many a process is, or what a "
        "launcher sets (torchrun, srun, mpirun)."},
    Setting{
        "KOLO_ALGORITHM", &Config::algorithm, 0, 0,
        "Algorithms to prefer where they can run, as collective:algorithm, separated by commas: "
        "allreduce:ring,allgather:hierarchical. A collective that is not named (allreduce, "
        "reduce_scatter, allgather, broadcast, alltoall) takes the fastest. On GPUs, direct sums "
        "floating types in rank order; all other names mean NCCL."},
    Setting{"KOLO_SHARD", &Config::shard, 0, 0,
            "What DistributedOptimizer shards if the program does not set it: none, optimizer, "
            "gradients or full."},
    Setting{"KOLO_LOG_LEVEL", &Config::log_level, 0, 0,
            "Lowest severity that is written to stderr: error, warn, info or debug."},
    Setting{"KOLO_RECORD", &Config::record, 0, 0,
            "Folder to which each rank writes what it did last, at an error, on SIGUSR2 or on "
            "SIGTERM; auto: kolo-record-<number> in the system's folder for temporary files; off: "
            "nothing."},
    Setting{"KOLO_TIMELINE", &Config::timeline, 0, 0,
            "Folder to which each rank writes a timeline of its whole run; empty: none."},
    Setting{"KOLO_METRICS", &Config::metrics, 0, 0,
            "File that each rank replaces every 10 s by its metrics, in Prometheus' text format. "
            "{rank} in its name stands for the rank; without it, a dot and the rank are appended "
            "if there are several. Or an address, as :9400, at which the first rank of each host "
            "answers HTTP requests, and the others at the ports that follow; without a host name "
            "requests of this host alone. Empty: none."},
    Setting{"KOLO_METRICS_LABELS", &Config::metrics_labels, 0, 0,
            "Labels of all values of KOLO_METRICS, besides rank and job_id: team=vision,run=42."},
    Setting{"KOLO_FUSION_BYTES", &Config::fusion_bytes, 0, std::int64_t{1} << 30,
            "Largest fused batch. A batch that exceeds the cache costs more than it saves."},
};

/// A variable that was a setting, and what to do instead.
struct GoneSetting {
  std::string_view variable;
  std::string_view instead;
};

constexpr std::string_view kOfTheEngine = "Kolo uses a value of its own; unset it";
constexpr std::array<GoneSetting, 12> kGoneSettings{{
    {"KOLO_ALLREDUCE", "use KOLO_ALGORITHM=allreduce:<name>"},
    {"KOLO_ALLGATHER", "use KOLO_ALGORITHM=allgather:<name>"},
    {"KOLO_ALLTOALL", "use KOLO_ALGORITHM=alltoall:<name>"},
    {"KOLO_BROADCAST", "use KOLO_ALGORITHM=broadcast:<name>"},
    {"KOLO_REDUCE_SCATTER", "use KOLO_ALGORITHM=reduce_scatter:<name>"},
    {"KOLO_PATIENCE", kOfTheEngine},
    {"KOLO_SPIN", kOfTheEngine},
    {"KOLO_SEGMENT_BYTES", kOfTheEngine},
    {"KOLO_STAGING_BYTES", kOfTheEngine},
    {"KOLO_TABLE_CAPACITY", kOfTheEngine},
    {"KOLO_TREE_WIDTH", kOfTheEngine},
    {"KOLO_PROTECT_PARAMETERS", "write to parameters in DistributedOptimizer::full_parameters()"},
}};

/// A name that differs from a setting's by more letters is no misspelling.
constexpr std::size_t kLargestDistance = 2;

/// Levenshtein distance: the letters to insert, delete or replace.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char letter : from) {
    std::size_t diagonal = row[0]++;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t replaced = diagonal + (letter == to[i] ? 0 : 1);
      diagonal = std::exchange(row[i + 1], std::min({row[i] + 1, row[i + 1] + 1, replaced}));
    }
  }
  return row.back();
}

[[noreturn]] void reject(const Setting& setting, std::string_view text, std::string_view expected) {
  throw InvalidArgument(std::string(setting.variable) + "='" + std::string(text) + "': expected " +
                        std::string(expected));
}

/// A whole number directly followed by a unit; `bare` allows a number without one.
std::int64_t parse_quantity(const Setting& setting, std::string_view text,
                            std::span<const Unit> units, bool bare, std::string_view expected) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) reject(setting, text, expected);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (suffix.empty() && bare) return number;
  for (const Unit& unit : units) {
    if (suffix != unit.name) continue;
    if (number > std::numeric_limits<std::int64_t>::max() / unit.factor)
      reject(setting, text, expected);
    return number * unit.factor;
  }
  reject(setting, text, expected);
}

/// Formats in the largest unit that divides the value, which is not 0.
std::string format_quantity(std::int64_t value, std::span<const Unit> units) {
  const Unit* best = &units.back();
  for (const Unit& unit : units) {
    if (value % unit.factor == 0 && (value % best->factor != 0 || unit.factor > best->factor))
      best = &unit;
  }
  return std::to_string(value / best->factor) + std::string(best->name);
}

struct Form {
  std::string_view unit;
  std::string_view expected;
};

Form form_of(const Field& field) {
  switch (field.index()) {
    case 0: return {"duration", "a duration such as 250ms, 10s or 5min"};
    case 1: return {"bytes", "a size such as 65536, 256KB or 64MB (powers of 1024)"};
    case 2: return {"number", "a whole number"};
    case 3: return {"switch", "on or off"};
    default: return {"text", "text"};
  }
}

std::string format(const Setting& setting, std::int64_t value) {
  if (setting.field.index() == 0) {
    return value == 0 ? "0s" : format_quantity(value, kDurationUnits);
  }
  if (setting.field.index() == 1) return value == 0 ? "0" : format_quantity(value, kSizeUnits);
  return std::to_string(value);
}

std::string range_of(const Setting& setting) {
  if (setting.field.index() >= 3) return std::string(form_of(setting.field).expected);
  return format(setting, setting.lowest) + " to " + format(setting, setting.highest);
}

void require_in_range(const Setting& setting, std::string_view text, std::int64_t value) {
  if (value < setting.lowest || value > setting.highest) reject(setting, text, range_of(setting));
}

void parse(const Setting& setting, std::string_view text, Config& config) {
  const std::string_view expected = form_of(setting.field).expected;
  if (const auto* duration = std::get_if<Duration Config::*>(&setting.field)) {
    const std::int64_t value = parse_quantity(setting, text, kDurationUnits, false, expected);
    require_in_range(setting, text, value);
    config.*(*duration) = Duration(value);
  } else if (const auto* size = std::get_if<std::size_t Config::*>(&setting.field)) {
    const std::int64_t value = parse_quantity(setting, text, kSizeUnits, true, expected);
    require_in_range(setting, text, value);
    config.*(*size) = static_cast<std::size_t>(value);
  } else if (const auto* number = std::get_if<int Config::*>(&setting.field)) {
    const std::int64_t value = parse_quantity(setting, text, {}, true, expected);
    require_in_range(setting, text, value);
    config.*(*number) = static_cast<int>(value);
  } else if (const auto* flag = std::get_if<bool Config::*>(&setting.field)) {
    if (text != "on" && text != "off") reject(setting, text, expected);
    config.*(*flag) = text == "on";
  } else {
    config.*(std::get<std::string Config::*>(setting.field)) = text;
  }
}

/// Names that Prometheus accepts and Kolo does not use, each once, and values without escapes.
bool are_labels(std::string_view text) {
  std::set<std::string_view> used{"rank", "collective", "path", "peer", "le"};
  while (!text.empty()) {
    const std::string_view label = text.substr(0, text.find(','));
    text.remove_prefix(std::min(label.size() + 1, text.size()));
    const std::string_view name = label.substr(0, label.find('='));
    const auto is_letter = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    };
    if (name.empty() || name == label || name.starts_with("__") ||
        std::isdigit(static_cast<unsigned char>(name.front())) ||
        !std::ranges::all_of(name, is_letter) || !used.insert(name).second ||
        label.find_first_of("\"\\\n") != std::string_view::npos) {
      return false;
    }
  }
  return true;
}

/// Runs `look_up` and prefixes its errors with the variable's name.
template <class LookUp>
void require_known(const std::string& variable, LookUp look_up) {
  try {
    look_up();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(variable + ": " + error.what());
  }
}

std::string value_of(const Setting& setting, const Config& config) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = config.*member;
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<Value, bool>) {
          return value ? "on" : "off";
        } else if constexpr (std::is_same_v<Value, Duration>) {
          return format(setting, value.count());
        } else {
          return format(setting, static_cast<std::int64_t>(value));
        }
      },
      setting.field);
}

}  // namespace

Config Config::from_environment() {
  Config config;
  for (const Setting& setting : kSettings) {
    const char* const text = std::getenv(std::string(setting.variable).c_str());
    if (text != nullptr) parse(setting, text, config);
  }
  config.validate();
  return config;
}

void Config::validate() const {
  for (const Setting& setting : kSettings) {
    std::visit(
        [&](auto member) {
          const auto& value = this->*member;
          using Value = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, Duration>) {
            require_in_range(setting, value_of(setting, *this), value.count());
          } else if constexpr (std::is_same_v<Value, int>) {
            require_in_range(setting, value_of(setting, *this), value);
          } else if constexpr (std::is_same_v<Value, std::size_t>) {
            constexpr auto kLargest = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
            require_in_range(setting, value_of(setting, *this),
                             static_cast<std::int64_t>(std::min(value, kLargest)));
          }
        },
        setting.field);
  }
  require_known("KOLO_LOG_LEVEL", [&] { parse_log_level(log_level); });
  if (launcher != "auto" && launcher != "mpi" && launcher != "none") {
    throw InvalidArgument("KOLO_LAUNCHER='" + launcher + "': expected auto, mpi or none");
  }
  if (nccl_algo != "ring" && nccl_algo != "auto") {
    throw InvalidArgument("KOLO_NCCL_ALGO='" + nccl_algo + "': expected ring or auto");
  }
  require_known("KOLO_SHARD", [&] { shard_named(shard); });
  if (!are_labels(metrics_labels)) {
    throw InvalidArgument("KOLO_METRICS_LABELS='" + metrics_labels +
                          "': expected labels such as team=vision,run=42, other than rank, "
                          "collective, path, peer and le, each once");
  }
}

std::vector<ConfigEntry> describe(const Config& config) {
  const Config defaults;
  std::vector<ConfigEntry> entries;
  for (const Setting& setting : kSettings) {
    entries.push_back({std::string(setting.variable), value_of(setting, config),
                       value_of(setting, defaults), std::string(form_of(setting.field).unit),
                       range_of(setting), std::string(setting.help)});
  }
  return entries;
}

std::vector<std::string> ignored_settings() {
  std::vector<std::string> texts;
  for (char* const* entry = environ; *entry != nullptr; ++entry) {
    std::string_view name(*entry);
    name = name.substr(0, name.find('='));
    if (!name.starts_with("KOLO_")) continue;
    const auto distance = [&](const Setting& setting) {
      return edit_distance(name, setting.variable);
    };
    const auto nearest = std::ranges::min_element(kSettings, {}, distance);
    if (distance(*nearest) == 0) continue;
    const auto gone = std::ranges::find(kGoneSettings, name, &GoneSetting::variable);
    if (gone != kGoneSettings.end()) {
      texts.push_back(std::string(name) + " is no longer a setting and has no effect: " +
                      std::string(gone->instead) + '.');
    } else if (distance(*nearest) <= kLargestDistance) {
      texts.push_back(std::string(name) + " is not a setting and has no effect. Is " +
                      std::string(nearest->variable) +
                      " meant? kolo-bench --config lists all settings.");
    }
  }
  return texts;
}

}  // namespace kolo
