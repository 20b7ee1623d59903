#include "bench/measure.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace bench {

namespace {

/// A case of one of the jobs, and its blocks so far.
struct Entry {
  Job* job;
  std::size_t number;
  Label label;
  std::vector<double> means_us{};
  std::vector<double> calls_us{};
  std::vector<double> hosts_us{};
  double cpu_s = 0;
};

std::vector<Entry> enter(const std::vector<Job*>& jobs, const Workload& workload) {
  std::vector<Entry> entries;
  for (Job* const job : jobs) {
    std::size_t number = 0;
    for (Label& label : job->prepare(workload)) entries.push_back({job, number++, label});
  }
  return entries;
}

void run_rounds(std::vector<Entry>& entries, const Repetition& repetition) {
  // A block's cache contents affect the next block, so every case should follow every other one.
  std::mt19937 shuffler;
  std::vector<Entry*> order;
  for (Entry& entry : entries) order.push_back(&entry);
  for (int round = 0; round < repetition.warmup + repetition.rounds; ++round) {
    std::ranges::shuffle(order, shuffler);
    for (Entry* const turn : order) {
      Entry& entry = *turn;
      const Block block = entry.job->run(entry.number, repetition.iterations);
      if (round < repetition.warmup) continue;
      entry.means_us.push_back(block.mean_us);
      entry.calls_us.insert(entry.calls_us.end(), block.calls_us.begin(), block.calls_us.end());
      entry.hosts_us.push_back(block.host_us);
      entry.cpu_s += block.cpu_s;
    }
  }
}

/// The smallest of `values` that 99 % of them do not exceed.
double percentile_99(std::vector<double> values) {
  std::ranges::sort(values);
  const auto rank = static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(values.size())));
  return values[rank - 1];
}

/// The fastest entry of each reference, in order of appearance, but the flat one last.
std::vector<const Entry*> find_references(const std::vector<Entry>& entries) {
  std::vector<const Entry*> found;
  for (const Entry& entry : entries) {
    if (entry.label.reference.empty()) continue;
    const auto same = std::ranges::find_if(
        found, [&](const Entry* other) { return other->label.reference == entry.label.reference; });
    if (same == found.end()) {
      found.push_back(&entry);
    } else if (examples::median(entry.means_us) < examples::median((*same)->means_us)) {
      *same = &entry;
    }
  }
  std::stable_partition(found.begin(), found.end(),
                        [](const Entry* entry) { return entry->label.reference != kFlat; });
  return found;
}

Ratio compare(const Entry& entry, const Entry& reference) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < entry.means_us.size(); ++round) {
    ratios.push_back(entry.means_us[round] / reference.means_us[round]);
  }
  return {examples::median(ratios), examples::median_interval(ratios)};
}

}  // namespace

std::vector<Row> measure(const std::vector<Job*>& jobs, const Workload& workload,
                         const Repetition& repetition) {
  std::vector<Entry> entries = enter(jobs, workload);
  run_rounds(entries, repetition);
  const std::vector<const Entry*> references = find_references(entries);
  const int ranks = jobs.front()->ranks();
  const std::size_t bytes = size_bytes(workload, ranks);
  std::vector<Row> rows;
  for (const Entry& entry : entries) {
    const double median = examples::median(entry.means_us);
    const double gbps = static_cast<double>(bytes) / median / 1e3;
    Row row{.bytes = bytes,
            .count = element_count(workload, ranks),
            .label = entry.label,
            .min_us = *std::ranges::min_element(entry.means_us),
            .median_us = median,
            .p99_us = percentile_99(entry.calls_us),
            .host_us = examples::median(entry.hosts_us),
            .algbw_gbps = gbps,
            .busbw_gbps = gbps * bus_factor(workload.operation, ranks),
            .wrong = entry.job->count_wrong(entry.number),
            .cpu_s = entry.cpu_s,
            .calls = repetition.rounds * repetition.iterations,
            .ratios = {}};
    for (const Entry* const reference : references) {
      row.ratios.emplace_back(reference->label.reference, compare(entry, *reference));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bench
