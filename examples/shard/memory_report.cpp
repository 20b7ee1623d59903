#include "shard/memory_report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "shard/wire.hpp"

namespace shard {
namespace {

constexpr double kUnshardedBytes = 16;  // bytes per parameter without sharding
constexpr double kMaxAboveFormula = 0.1;
constexpr double kMaxPssDifference = 0.1;
constexpr double kSlots = 3;         // buckets that share memory with all others
constexpr double kUnits = 2;         // of parameters in memory, each the size of a bucket
constexpr double kPages = 2 * 4096;  // that a segment may have in addition

void print_line(const char* name, double value) { std::printf("  %-25s %7.3f\n", name, value); }

std::string filled_in(const char* text, double value, double bound) {
  char line[160];
  std::snprintf(line, sizeof line, text, value, bound);
  return line;
}

}  // namespace

MemoryReport::MemoryReport(kolo::Shard shard, std::vector<nlohmann::ordered_json> ranks,
                           int ranks_per_copy)
    : shard_(shard),
      ranks_(std::move(ranks)),
      elements_(ranks_.front()["elements"].get<double>()),
      min_bytes_sent_(min_bytes_sent(shard_, static_cast<std::int64_t>(elements_),
                                     static_cast<int>(ranks_.size()), ranks_per_copy)) {}

double MemoryReport::most(const char* key) const {
  double most = 0;
  for (const auto& rank : ranks_) most = std::max(most, rank[key].get<double>());
  return most;
}

double MemoryReport::sum(const char* key) const {
  double sum = 0;
  for (const auto& rank : ranks_) sum += rank[key].get<double>();
  return sum;
}

double MemoryReport::slots() const {
  return shard_ >= kolo::Shard::Gradients ? share("buckets") : 0;
}

double MemoryReport::total() const {
  return share("parameters") + share("gradients") + share("state") + share("other") +
         share("buckets") - slots();
}

double MemoryReport::formula() const {
  const auto ranks = static_cast<double>(ranks_.size());
  switch (shard_) {
    case kolo::Shard::Optimizer: return 8 + 8 / ranks;
    case kolo::Shard::Gradients: return 4 + 12 / ranks;
    case kolo::Shard::Full: return 16 / ranks;
    case kolo::Shard::None: break;
  }
  return kUnshardedBytes;
}

std::vector<std::string> MemoryReport::defects() const {
  std::vector<std::string> defects;
  const auto expect = [&](bool is_met, const char* text, double value, double bound) {
    if (!is_met) defects.push_back(filled_in(text, value, bound));
  };
  expect(total() <= formula() + kMaxAboveFormula, "%.3f bytes per parameter live, more than %.3f",
         total(), formula() + kMaxAboveFormula);
  expect(slots() * elements_ <= kSlots * most("largest_bucket") + kPages,
         "buckets take %.0f bytes, more than three of the largest: %.0f", slots() * elements_,
         kSlots * most("largest_bucket"));
  expect(most("gathered") <= kUnits * most("largest_bucket"),
         "gathered units take %.0f bytes, more than two of the largest: %.0f", most("gathered"),
         kUnits * most("largest_bucket"));
  if (shard_ >= kolo::Shard::Gradients && ranks_.size() >= 4) {  // by the formula 7 / 16 or less
    expect(total() <= 0.45 * kUnshardedBytes,
           "%.3f bytes per parameter without buckets, more than %.3f", total(),
           0.45 * kUnshardedBytes);
    expect(with_buffers() <= 0.5 * kUnshardedBytes,
           "%.3f bytes per parameter with buckets, more than %.3f", with_buffers(),
           0.5 * kUnshardedBytes);
  }
  expect(std::abs(pss_ratio() - 1) <= kMaxPssDifference,
         "the kernel counts %.3f times what lives, off by more than %.2f", pss_ratio(),
         kMaxPssDifference);
  expect(sent_ratio() <= kMaxBytesSentRatio,
         "%.4f times the bytes sent that must be, more than %.4f", sent_ratio(),
         kMaxBytesSentRatio);
  return defects;
}

void MemoryReport::print() const {
  std::printf(
      "GPT, %.0f parameters in fp32, AdamW, %zu ranks, shard %s; just before step(), bytes per "
      "parameter on the rank that has most:\n",
      elements_, ranks_.size(), std::string(kolo::name_of(shard_)).c_str());
  print_line("parameters", share("parameters"));
  print_line("gradients", share("gradients"));
  print_line("optimizer state", share("state"));
  print_line("other tensors", share("other"));
  if (slots() == 0) print_line("buckets without gradients", share("buckets"));
  std::printf("  %-25s %7.3f, by the formula %.3f; %.1f %% of %.0f\n", "together", total(),
              formula(), 100 * total() / kUnshardedBytes, kUnshardedBytes);
  if (slots() > 0) {
    std::printf("  %-25s %7.3f, of at most %.1f MB each\n", "three buckets", slots(),
                most("largest_bucket") / 1e6);
    if (share("gathered") > 0) print_line("gathered units", share("gathered"));
    std::printf("  %-25s %7.3f, %.1f %% of %.0f\n", "with them", with_buffers(),
                100 * with_buffers() / kUnshardedBytes, kUnshardedBytes);
  }
  std::printf("  peaks: %.3f while it is made, %.3f in the first step, %.3f in the third\n",
              share("peak_of_construction"), share("peak_of_first_step"), share("peak_of_step"));
  std::printf(
      "all ranks: %.1f MB more than before the model; by the kernel %.1f MB (%.3f x), with "
      "libraries %.1f MB\n",
      sum("live_growth") / 1e6, sum("pss_growth") / 1e6, pss_ratio(),
      sum("pss_growth_with_files") / 1e6);
  std::printf("each rank: %.1f MB of windows from before the model; %.2f MB sent a step, %.4f x\n",
              most("windows_before") / 1e6, most("bytes_sent") / 1e6, sent_ratio());
  for (const std::string& defect : defects()) std::printf("MISSED: %s\n", defect.c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json MemoryReport::to_json() const {
  return {{"shard", kolo::name_of(shard_)},
          {"parameters", elements_},
          {"live", total()},
          {"formula", formula()},
          {"slots", slots()},
          {"gathered", share("gathered")},
          {"pss_ratio", pss_ratio()},
          {"bytes_sent_ratio", sent_ratio()},
          {"defects", defects()},
          {"ranks", ranks_}};
}

}  // namespace shard
