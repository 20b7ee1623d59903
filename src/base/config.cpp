#include "kolo/config.hpp"

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string_view>
#include <variant>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "kolo/shard.hpp"

namespace kolo {
namespace {

using Duration = Config::Duration;
using Field = std::variant<Duration Config::*, std::size_t Config::*, int Config::*, bool Config::*,
                           std::string Config::*>;

/// One knob. Durations are bounded in nanoseconds, sizes in bytes; a size is a multiple of `step`.
struct Knob {
  std::string_view variable;
  Field field;
  std::int64_t lowest;
  std::int64_t highest;
  std::string_view help;
  std::int64_t step = 1;
};

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kYear = kSecond * 365 * 24 * 3600;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Longest first where one name ends in another.
constexpr std::array<Unit, 6> kDurationUnits{{{"min", 60 * kSecond},
                                              {"ns", 1},
                                              {"us", 1'000},
                                              {"ms", 1'000'000},
                                              {"s", kSecond},
                                              {"h", 3600 * kSecond}}};
constexpr std::array<Unit, 4> kSizeUnits{
    {{"KB", std::int64_t{1} << 10}, {"MB", kMiB}, {"GB", std::int64_t{1} << 30}, {"B", 1}}};

const std::array kKnobs{
    Knob{"KOLO_TIMEOUT", &Config::timeout, 1'000'000, kYear,
         "Deadline of an operation, from its submission until all ranks have submitted it."},
    Knob{"KOLO_STALL_WARN", &Config::stall_warn, 0, kYear,
         "Wait after which the ranks that keep an operation waiting are reported; 0s: never."},
    Knob{"KOLO_LOST_AFTER", &Config::lost_after, 1'000'000, kYear,
         "Silence past a deadline or a shutdown after which a rank counts as lost."},
    Knob{"KOLO_FUSION", &Config::fusion, 0, 1,
         "Small tensors that are ready together run as one batch. Off: every tensor alone, with "
         "bits that do not depend on timing."},
    Knob{"KOLO_SHARED_MEMORY", &Config::shared_memory, 0, 1,
         "Use shared memory between ranks of a node."},
    Knob{
        "KOLO_FAKE_NODES", &Config::fake_nodes, 0, 1 << 20,
        "Split the ranks into so many groups that act as nodes, for trying things; 0: real nodes."},
    Knob{"KOLO_SHARE_GPU", &Config::share_gpu, 0, 1,
         "Several ranks may use one GPU, for trying things: slow. Off: each rank has its own."},
    Knob{"KOLO_ALLREDUCE", &Config::allreduce, 0, 0,
         "Preferred all-reduce algorithm, by name; empty: the fastest that fits. On GPUs direct "
         "sums floating types in rank order, all others are NCCL's."},
    Knob{"KOLO_ALLGATHER", &Config::allgather, 0, 0,
         "Preferred all-gather algorithm, by name; empty: the fastest that fits."},
    Knob{"KOLO_ALLTOALL", &Config::alltoall, 0, 0,
         "Preferred all-to-all algorithm, by name; empty: the fastest that fits."},
    Knob{"KOLO_BROADCAST", &Config::broadcast, 0, 0,
         "Preferred broadcast algorithm, by name; empty: the fastest that fits."},
    Knob{"KOLO_REDUCE_SCATTER", &Config::reduce_scatter, 0, 0,
         "Preferred reduce-scatter algorithm, by name; empty: the fastest that fits. On GPUs as "
         "KOLO_ALLREDUCE."},
    Knob{
        "KOLO_SHARD", &Config::shard, 0, 0,
        "What the ranks divide among themselves where the program does not say: none, optimizer or "
        "gradients."},
    Knob{"KOLO_LOG_LEVEL", &Config::log_level, 0, 0,
         "What is written to stderr: error, warn, info or debug."},
    Knob{"KOLO_PATIENCE", &Config::patience, 0, kYear,
         "Age at which a tensor that was not expected next asks all ranks for an exchange. More: "
         "fewer, larger exchanges; less: unexpected orders cost less time."},
    Knob{"KOLO_SPIN", &Config::spin, 0, kSecond,
         "How long a waiting caller spins before it yields, then sleeps. More: lower latency, and "
         "a core that others cannot use. Not at all on nodes with more ranks than cores."},
    Knob{"KOLO_FUSION_BYTES", &Config::fusion_bytes, 0, std::int64_t{1} << 30,
         "Largest fused batch. More than the cache holds costs more than it saves."},
    Knob{"KOLO_SEGMENT_BYTES", &Config::segment_bytes, 64, std::int64_t{1} << 30,
         "Longest message, and the chunk that shared memory is worked on in; a multiple of 64.",
         64},
    Knob{"KOLO_STAGING_BYTES", &Config::staging_bytes, 4096, std::int64_t{1} << 34,
         "Shared memory per rank and process set, for tensors that do not lie in it already; a "
         "multiple of 64.",
         64},
    Knob{"KOLO_TABLE_CAPACITY", &Config::table_capacity, 1, 8192,
         "Requests that a process set remembers; more in use at once are remembered all the same."},
    Knob{"KOLO_TREE_WIDTH", &Config::tree_width, 1, 1 << 20,
         "Children of a rank in the tree that negotiations go along."},
};

[[noreturn]] void reject(const Knob& knob, std::string_view text, std::string_view expected) {
  throw InvalidArgument(std::string(knob.variable) + "='" + std::string(text) + "': expected " +
                        std::string(expected));
}

/// A whole number directly followed by one of the units, or by nothing where `bare` is allowed.
std::int64_t parse_quantity(const Knob& knob, std::string_view text, std::span<const Unit> units,
                            bool bare, std::string_view expected) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) reject(knob, text, expected);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (suffix.empty() && bare) return number;
  for (const Unit& unit : units) {
    if (suffix != unit.name) continue;
    if (number > std::numeric_limits<std::int64_t>::max() / unit.factor)
      reject(knob, text, expected);
    return number * unit.factor;
  }
  reject(knob, text, expected);
}

/// In the largest unit that divides it.
std::string format_quantity(std::int64_t value, std::span<const Unit> units) {
  const Unit* best = &units.back();
  for (const Unit& unit : units) {
    if (value % unit.factor == 0 && (value % best->factor != 0 || unit.factor > best->factor))
      best = &unit;
  }
  if (value == 0) best = &units.back();
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

std::string format(const Knob& knob, std::int64_t value) {
  if (knob.field.index() == 0) {
    return value == 0 ? "0s" : format_quantity(value, kDurationUnits);
  }
  if (knob.field.index() == 1) return value == 0 ? "0" : format_quantity(value, kSizeUnits);
  return std::to_string(value);
}

std::string range_of(const Knob& knob) {
  if (knob.field.index() >= 3) return std::string(form_of(knob.field).expected);
  return format(knob, knob.lowest) + " to " + format(knob, knob.highest);
}

void require_in_range(const Knob& knob, std::string_view text, std::int64_t value) {
  if (value >= knob.lowest && value <= knob.highest && value % knob.step == 0) return;
  std::string expected = range_of(knob);
  if (knob.step != 1) expected += ", a multiple of " + std::to_string(knob.step);
  reject(knob, text, expected);
}

void parse(const Knob& knob, std::string_view text, Config& config) {
  const std::string_view expected = form_of(knob.field).expected;
  if (const auto* duration = std::get_if<Duration Config::*>(&knob.field)) {
    const std::int64_t value = parse_quantity(knob, text, kDurationUnits, false, expected);
    require_in_range(knob, text, value);
    config.*(*duration) = Duration(value);
  } else if (const auto* size = std::get_if<std::size_t Config::*>(&knob.field)) {
    const std::int64_t value = parse_quantity(knob, text, kSizeUnits, true, expected);
    require_in_range(knob, text, value);
    config.*(*size) = static_cast<std::size_t>(value);
  } else if (const auto* number = std::get_if<int Config::*>(&knob.field)) {
    const std::int64_t value = parse_quantity(knob, text, {}, true, expected);
    require_in_range(knob, text, value);
    config.*(*number) = static_cast<int>(value);
  } else if (const auto* flag = std::get_if<bool Config::*>(&knob.field)) {
    if (text != "on" && text != "off") reject(knob, text, expected);
    config.*(*flag) = text == "on";
  } else {
    config.*(std::get<std::string Config::*>(knob.field)) = text;
  }
}

/// Runs `look_up`, whose errors then name the variable.
template <class LookUp>
void require_known(const std::string& variable, LookUp look_up) {
  try {
    look_up();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(variable + ": " + error.what());
  }
}

std::string value_of(const Knob& knob, const Config& config) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = config.*member;
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<Value, bool>) {
          return value ? "on" : "off";
        } else if constexpr (std::is_same_v<Value, Duration>) {
          return format(knob, value.count());
        } else {
          return format(knob, static_cast<std::int64_t>(value));
        }
      },
      knob.field);
}

}  // namespace

Config Config::from_environment() {
  Config config;
  for (const Knob& knob : kKnobs) {
    const char* const text = std::getenv(std::string(knob.variable).c_str());
    if (text != nullptr) parse(knob, text, config);
  }
  require_known("KOLO_LOG_LEVEL", [&] { parse_log_level(config.log_level); });
  require_known("KOLO_SHARD", [&] { shard_named(config.shard); });
  return config;
}

std::vector<ConfigEntry> describe(const Config& config) {
  const Config defaults;
  std::vector<ConfigEntry> entries;
  for (const Knob& knob : kKnobs) {
    entries.push_back({std::string(knob.variable), value_of(knob, config), value_of(knob, defaults),
                       std::string(form_of(knob.field).unit), range_of(knob),
                       std::string(knob.help)});
  }
  return entries;
}

}  // namespace kolo
