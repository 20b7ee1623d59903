#include "insight/metrics_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "base/log.hpp"

namespace kolo {
namespace {

using Sample = std::pair<std::string, double>;  // the label's value

/// One name with its values. No text in it needs to be escaped in either format.
struct Family {
  std::string_view name;
  std::string_view help;
  std::string_view type = "counter";
  std::string_view label{};       ///< empty: one value
  std::vector<Sample> samples{};  ///< of a histogram: cumulative
  const Metrics::Histogram* histogram = nullptr;
};

std::string to_text(double number) {
  std::array<char, 400> digits{};  // the largest number has 309
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::fixed)
          .ptr;
  return {digits.data(), end};
}

Family counter(std::string_view name, std::string_view help, auto value) {
  return {.name = name, .help = help, .samples = {{"", static_cast<double>(value)}}};
}

Family histogram(std::string_view name, std::string_view help, const Metrics::Histogram& values) {
  Family family{
      .name = name, .help = help, .type = "histogram", .label = "le", .histogram = &values};
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < values.counts.size(); ++i) {
    count += values.counts[i];
    const bool is_last = i == Metrics::Histogram::kBounds;
    family.samples.emplace_back(is_last ? "+Inf" : to_text(Metrics::Histogram::bound(i)),
                                static_cast<double>(count));
  }
  return family;
}

/// Peers that this rank has not waited for are left out: in a large world they are most.
Family by_peer(std::string_view name, std::string_view help, const std::vector<double>& seconds) {
  Family family{.name = name, .help = help, .label = "peer"};
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    if (seconds[rank] > 0.0) family.samples.emplace_back(std::to_string(rank), seconds[rank]);
  }
  return family;
}

void add_operations(const Metrics& metrics, std::vector<Family>& families) {
  Family ended{.name = "kolo_operations_total",
               .help = "Operations that have ended, with or without an error.",
               .label = "collective"};
  Family failed{.name = "kolo_failed_operations_total",
                .help = "Operations that have ended with an error.",
                .label = "collective"};
  for (const auto& [collective, operations] : metrics.operations) {
    ended.samples.emplace_back(collective, operations.ended);
    failed.samples.emplace_back(collective, operations.failed);
  }
  const Metrics::Bytes& bytes = metrics.bytes;
  families.push_back(std::move(ended));
  families.push_back(std::move(failed));
  families.push_back({.name = "kolo_moved_bytes_total",
                      .help = "Payload moved to or from other ranks' shared memory, or sent.",
                      .label = "path",
                      .samples = {{"shared_memory", bytes.shared_memory},
                                  {"messages", bytes.messages},
                                  {"gpus", bytes.gpus}}});
  families.push_back(counter("kolo_packed_bytes_total",
                             "Payload copied to fuse or to compress tensors.", bytes.packed));
  families.push_back(counter("kolo_header_bytes_total",
                             "Bytes published or sent to agree on operations.", bytes.headers));
}

void add_times(const Metrics& metrics, std::vector<Family>& families) {
  families.push_back(histogram(
      "kolo_agree_seconds",
      "Time from an operation's submission until all ranks had agreed to run it.", metrics.agree));
  families.push_back(histogram("kolo_queue_seconds",
                               "Time from there until its data began to move.", metrics.queue));
  families.push_back(histogram(
      "kolo_move_seconds", "Time from there to its end; on a GPU to its launch.", metrics.move));
  families.push_back(by_peer("kolo_late_seconds_total",
                             "Time in which operations waited for a peer, the last to submit them.",
                             metrics.late_seconds));
  families.push_back(by_peer("kolo_data_wait_seconds_total",
                             "Time in which no data moved because of a peer.",
                             metrics.data_wait_seconds));
  families.back().samples.emplace_back("unknown", metrics.unknown_data_wait_seconds);
  families.push_back(by_peer("kolo_open_wait_seconds",
                             "How long ago the oldest operation that waits for a peer began.",
                             metrics.open_wait_seconds));
  families.back().samples.emplace_back("unknown", metrics.unknown_open_wait_seconds);
  families.back().type = "gauge";
}

void add_program(const Metrics& metrics, std::vector<Family>& families) {
  families.push_back(counter("kolo_blocked_seconds_total",
                             "Time in which the program's threads waited for operations.",
                             metrics.blocked_seconds));
  families.push_back(counter("kolo_steps_total", "Steps of training.", metrics.steps));
  if (metrics.last_step_time > 0.0) {
    families.push_back(counter("kolo_last_step_timestamp_seconds",
                               "When the last step ended, in seconds since the epoch.",
                               metrics.last_step_time));
    families.back().type = "gauge";
  }
  families.push_back(counter("kolo_step_exposed_seconds_total",
                             "Time in steps in which the program's threads waited for operations.",
                             metrics.exposed_seconds));
  families.push_back(
      counter("kolo_stalls_total", "Stalls that this rank has reported.", metrics.stalls));
  families.push_back(counter("kolo_records_total",
                             "Records of its last events that this rank has written.",
                             metrics.records));
  // The last: kolo-trace takes a file without it for one that has been cut.
  families.push_back(counter("kolo_elapsed_seconds_total",
                             "Time since this rank's Runtime started.", metrics.elapsed_seconds));
}

std::vector<Family> families_of(const Metrics& metrics) {
  std::vector<Family> families;
  add_operations(metrics, families);
  add_times(metrics, families);
  add_program(metrics, families);
  return families;
}

std::string object_of(const std::vector<Sample>& samples) {
  std::string text = "{";
  for (const auto& [label, value] : samples) {
    text += (text.size() > 1 ? ",\"" : "\"") + label + "\":" + to_text(value);
  }
  return text + "}";
}

}  // namespace

std::string to_json(const Metrics& metrics) {
  std::string text;
  for (const Family& family : families_of(metrics)) {
    text.append(text.empty() ? "{\"" : ",\"").append(family.name).append("\":");
    if (family.histogram != nullptr) {
      text += "{\"count\":" + to_text(family.samples.back().second) +
              ",\"sum\":" + to_text(family.histogram->sum) +
              ",\"buckets\":" + object_of(family.samples) + "}";
    } else {
      text +=
          family.label.empty() ? to_text(family.samples.front().second) : object_of(family.samples);
    }
  }
  return text + "}";
}

}  // namespace kolo

namespace kolo::insight {

std::string labels_of(std::uint64_t job, std::string_view own) {
  std::string labels;
  bool has_job = false;
  while (!own.empty()) {
    const std::string_view one = own.substr(0, own.find(','));
    own.remove_prefix(std::min(one.size() + 1, own.size()));
    const std::size_t equals = one.find('=');
    labels.append(",").append(one.substr(0, equals)).append("=\"");
    labels.append(one.substr(equals + 1)).append("\"");
    has_job |= one.substr(0, equals) == "job_id";
  }
  if (has_job) return labels;
  std::string id = std::to_string(job);
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && std::strpbrk(value, "\"\\\n") == nullptr) id = value;
  }
  return ",job_id=\"" + id + "\"" + labels;
}

std::string to_prometheus(const Metrics& metrics, int rank, std::string_view labels,
                          bool is_open_metrics) {
  std::string text;
  const std::string rank_label = "{rank=\"" + std::to_string(rank) + "\"";
  for (const Family& family : families_of(metrics)) {
    const bool is_histogram = family.histogram != nullptr;
    const std::string name(family.name);
    const auto add = [&](std::string_view suffix, const std::string& label, double value) {
      text.append(name).append(suffix).append(rank_label).append(label).append(labels);
      text.append("} ").append(to_text(value)).append("\n");
    };
    std::string of_family = name;
    if (is_open_metrics && family.type == "counter") of_family.resize(name.rfind("_total"));
    text.append("# HELP ").append(of_family).append(" ").append(family.help).append("\n");
    text.append("# TYPE ").append(of_family).append(" ").append(family.type).append("\n");
    for (const auto& [value, number] : family.samples) {
      const std::string label =
          family.label.empty() ? "" : std::string(",").append(family.label) + "=\"" + value + "\"";
      add(is_histogram ? "_bucket" : "", label, number);
    }
    if (!is_histogram) continue;
    add("_sum", "", family.histogram->sum);
    add("_count", "", family.samples.back().second);
  }
  return is_open_metrics ? text + "# EOF\n" : text;
}

std::string name_for_rank(std::string_view name, const Origin& origin) {
  constexpr std::string_view kPlace = "{rank}";
  const std::string rank = std::to_string(origin.rank);
  std::string path(name);
  const std::size_t place = path.find(kPlace);
  if (place != std::string::npos) return path.replace(place, kPlace.size(), rank);
  return origin.size > 1 ? path + "." + rank : path;
}

MetricsFile::MetricsFile(std::string path, std::function<std::string()> text,
                         std::chrono::milliseconds interval)
    : path_(std::move(path)), text_(std::move(text)), writer_(interval, [this](bool) {
        write();
        return true;
      }) {}

void MetricsFile::write() try {
  const Lock lock(lock_);
  if (is_removed_) return;
  const std::string temporary = path_ + ".tmp";
  std::ofstream file(temporary);
  file << text_();
  file.close();
  if (file && std::rename(temporary.c_str(), path_.c_str()) == 0) return;
  if (std::exchange(has_warned_, true)) return;
  KOLO_LOG(Warn) << "KOLO_METRICS: cannot write " << path_ << ": " << std::strerror(errno)
                 << ". The run goes on without the file. Choose one that this rank can write.";
} catch (const std::exception& error) {  // no memory: next time
  KOLO_LOG(Warn) << "KOLO_METRICS: " << error.what();
}

void MetricsFile::remove() {
  const Lock lock(lock_);
  is_removed_ = true;
  std::remove(path_.c_str());
}

}  // namespace kolo::insight
