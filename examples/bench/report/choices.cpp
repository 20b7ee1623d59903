#include "bench/report/choices.hpp"

#include <array>
#include <string_view>

#include "bench/workload/collective.hpp"
#include "ops/select.hpp"

namespace bench {
namespace {

using namespace kolo;

constexpr std::size_t kSmallest = 64;
constexpr std::size_t kLargest = std::size_t{1} << 30;

std::string_view reason_for(const Algorithm& algorithm) {
  switch (algorithm.needs) {
    case Needs::PeerBuffers: return "every rank works on all ranks' memory where it lies";
    case Needs::Window: return "through memory that the ranks share";
    case Needs::Nodes: return "inside nodes through shared memory, between them by messages";
    case Needs::Messages: return "by messages";
  }
  return "";
}

/// "a (why) up to 2 KB, then b (why)".
std::string describe_by_size(const ops::Registry& registry, ops::Situation situation) {
  std::string text;
  const Algorithm* last = nullptr;
  std::size_t last_bytes = 0;
  for (std::size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    situation.bytes = bytes;
    const Algorithm& algorithm = ops::select(registry, situation);
    if (&algorithm != last) {
      if (last != nullptr) text += " up to " + format_bytes(last_bytes) + ", then ";
      text += std::string(algorithm.name) + " (" + std::string(reason_for(algorithm)) + ')';
      last = &algorithm;
    }
    last_bytes = bytes;
  }
  return text;
}

bool has_window_algorithm(const ops::Registry& registry, Collective collective) {
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.collective == collective && algorithm.needs == Needs::PeerBuffers) return true;
  }
  return false;
}

}  // namespace

std::string format_bytes(std::size_t bytes) {
  constexpr std::array kUnits{"B", "KB", "MB", "GB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return std::to_string(bytes) + ' ' + kUnits[unit];
}

std::string describe_choices(const Config& config, int ranks, bool has_window) {
  ops::Registry registry;
  registry.prefer(config.algorithm);
  std::string text;
  for (std::size_t number = 0; number < kOperationNames.size(); ++number) {
    const auto operation = static_cast<Operation>(number);
    ops::Situation situation{
        .collective = collective_of(operation), .size = ranks, .has_window = has_window};
    const std::string wanted(registry.preferred(situation.collective));
    text += "  " + std::string(name_of(operation)) +
            (wanted.empty() ? "" : ", where possible " + wanted + ", as the environment asks") +
            "\n    private memory: " + describe_by_size(registry, situation) + '\n';
    if (!has_window || !has_window_algorithm(registry, situation.collective)) continue;
    situation.has_peer_buffers = true;
    text += "    shared memory: " + describe_by_size(registry, situation) + '\n';
  }
  return text;
}

}  // namespace bench
