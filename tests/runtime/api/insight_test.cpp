// Records, timelines and metrics: what they say of operations, ranks that come late, errors.
#include "kolo/insight.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "insight/prometheus.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/messages.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::insight_test {

using namespace std::chrono_literals;
using nlohmann::json;

/// A folder for one test, removed at its end.
class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "kolo-insight-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  Folder(const Folder&) = delete;  // removed once
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string in(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

json read_trace(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return json::parse(file);
}

json read_trace(const std::string& folder, int rank) {
  return read_trace(folder + "/rank-" + std::to_string(rank) + ".json");
}

/// The events of that category whose names end with `name`.
std::vector<json> find(const json& trace, const std::string& category, const std::string& name) {
  std::vector<json> found;
  for (const json& event : trace) {
    if (event.at("cat") == category && event.at("name").get<std::string>().ends_with(name)) {
      found.push_back(event);
    }
  }
  return found;
}

json only(const json& trace, const std::string& category, const std::string& name) {
  const std::vector<json> found = find(trace, category, name);
  EXPECT_EQ(found.size(), 1U) << category << " " << name << " in " << trace;
  return found.empty() ? json::object() : found.front();
}

json metadata(const json& trace) { return only(trace, "__metadata", "kolo_rank").at("args"); }

double end_of(const json& span) {
  return span.at("ts").get<double>() + span.at("dur").get<double>();
}

void sum(Runtime& runtime, const std::string& name, std::int64_t count = 5) {
  Tensor tensor(count);
  tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
  allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = name});
  tensor.expect([&](std::size_t i) { return input_sum(runtime.size(), i); }, name);
}

/// A sum that the rank `late` submits 0.1 s after the two others have.
void sum_with_a_late_rank(Runtime& runtime, int late, const std::string& name,
                          std::latch& others_wait) {
  if (runtime.rank() == late) {
    others_wait.wait();
    std::this_thread::sleep_for(100ms);
  }
  Tensor tensor(5);
  Handle handle =
      allreduce_async(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = name});
  if (runtime.rank() != late) others_wait.count_down();
  handle.wait();
}

class InsightTest : public testing::TestWithParam<Setting> {
 protected:
  const Folder folder_;
};

INSTANTIATE_TEST_SUITE_P(, InsightTest, testing::ValuesIn(three_ranks()),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(InsightTest, RecordSaysWhoCameLast) {
  std::map<int, std::latch> others_wait;
  for (const int late : {1, 2}) others_wait.try_emplace(late, 2);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    sum(runtime, "x");  // its name is known from now on
    for (const int late : {1, 2}) {
      const std::string name = "late " + std::to_string(late);
      sum(runtime, name);
      sum_with_a_late_rank(runtime, late, name, others_wait.at(late));
    }
    const std::string path = dump_record(folder_.in("record"));
    EXPECT_EQ(path, folder_.in("record/rank-" + std::to_string(runtime.rank()) + ".json"));
    barrier();
    for (const int late : {1, 2}) {
      const json trace = read_trace(path);
      const auto spans = find(trace, "negotiate", "allreduce late " + std::to_string(late));
      ASSERT_EQ(spans.size(), 2U);
      const json& args = spans.back().at("args");
      EXPECT_EQ(args.at("last_rank"), late);
      const auto late_us = args.at("late_us").get<double>();
      if (runtime.rank() == late) {
        EXPECT_EQ(late_us, 0.0);
      } else {
        EXPECT_GE(late_us, 100e3);
        EXPECT_GE(spans.back().at("dur").get<double>(), late_us);
      }
    }
  });
}

TEST_P(InsightTest, RanksNumberCollectivesAlike) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({0, 2});
    for (int i = 0; i < 5; ++i) sum(runtime, "x" + std::to_string(i));
    if (set.included()) barrier({.name = "inside", .process_set = &set});
    dump_record(folder_.in("record"));
    barrier();
  });
  std::map<std::string, std::vector<std::uint64_t>> numbers;
  for (int rank = 0; rank < 3; ++rank) {
    const json trace = read_trace(folder_.in("record"), rank);
    EXPECT_EQ(metadata(trace).at("rank"), rank);
    EXPECT_EQ(metadata(trace).at("size"), 3);
    double before = 0.0;
    for (int i = 0; i < 5; ++i) {
      const std::string name = "x" + std::to_string(i);
      const json move = only(trace, "move", "allreduce " + name);
      const json& args = move.at("args");
      EXPECT_EQ(args.at("set"), "world");
      EXPECT_EQ(args.at("bytes"), 20);
      EXPECT_FALSE(args.contains("error_kind"));
      EXPECT_GE(end_of(move), before);
      before = end_of(move);
      numbers[name].push_back(args.at("collective").get<std::uint64_t>());
    }
    const auto inside = find(trace, "move", "barrier inside");
    ASSERT_EQ(inside.size(), rank == 1 ? 0U : 1U);
    for (const json& span : inside) EXPECT_EQ(span.at("args").at("set"), "{0, 2}");
  }
  std::uint64_t last = 0;
  for (const auto& [name, of_ranks] : numbers) {
    EXPECT_EQ(of_ranks, std::vector(3, of_ranks.front())) << name;
    EXPECT_GT(of_ranks.front(), last);
    last = of_ranks.front();
  }
}

TEST_P(InsightTest, RecordNamesWhatHasNotEnded) {
  std::latch written(2);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    sum(runtime, "x");
    if (runtime.rank() == 1) {
      written.wait();
      return sum(runtime, "awaited");
    }
    Tensor tensor(5);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    Handle handle =
        allreduce_async(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "awaited"});
    EXPECT_FALSE(handle.wait_for(20ms));
    const json trace = read_trace(dump_record(folder_.in("record")));
    const json pending = only(trace, "pending", "allreduce awaited");
    EXPECT_EQ(pending.at("ph"), "B");
    EXPECT_EQ(pending.at("args").at("state"), "submitted");
    EXPECT_GT(pending.at("args").at("waiting_us").get<double>(), 19e3);
    EXPECT_TRUE(find(trace, "move", "awaited").empty());
    written.count_down();
    handle.wait();
  });
}

TEST_P(InsightTest, MismatchWritesARecordOnEveryRank) {
  Setting setting = GetParam();
  setting.config.record = folder_.in("errors");
  run_runtimes(setting, [&](Runtime& runtime) {
    sum(runtime, "x");
    Tensor tensor(runtime.rank() == 1 ? 6 : 5);
    const std::string text = text_thrown_by<MismatchError>(
        [&] { allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "differs"}); });
    sum(runtime, "x");  // begins once the record is written
    const json trace = read_trace(folder_.in("errors"), runtime.rank());
    EXPECT_EQ(metadata(trace).at("why"), text);
    const json error = only(trace, "error", text);
    EXPECT_EQ(error.at("args").at("kind"), "MismatchError");
    EXPECT_EQ(error.at("args").at("lost_rank"), -1);
  });
}

TEST_P(InsightTest, ErrorsOfArgumentsWriteNoRecord) {
  Setting setting = GetParam();
  setting.config.record = folder_.in("errors");
  run_runtimes(setting, [&](Runtime&) {
    Tensor tensor(5);
    EXPECT_THROW(
        allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Custom, .custom = "none"}),
        InvalidArgument);
  });
  EXPECT_FALSE(std::filesystem::exists(folder_.in("errors")));
}

TEST_P(InsightTest, TimelineHoldsWhatHappensWhileItRuns) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    sum(runtime, "before");
    start_timeline(folder_.in("timeline"));
    for (int i = 0; i < 50; ++i) sum(runtime, "x" + std::to_string(i));
    mark("half \"way\"");
    {
      const MarkedSpan span("span\n");
      sum(runtime, "inside");
    }
    stop_timeline();
    sum(runtime, "after");
    const json trace = read_trace(folder_.in("timeline"), runtime.rank());
    EXPECT_EQ(metadata(trace).at("why"), "timeline");
    for (const char* const name : {"before", "after"}) {
      EXPECT_TRUE(find(trace, "move", name).empty()) << name;
    }
    double last = 0.0;
    for (int i = 0; i < 50; ++i) {
      const std::string name = "allreduce x" + std::to_string(i);
      const json negotiate = only(trace, "negotiate", name);
      const json move = only(trace, "move", name);
      EXPECT_LE(negotiate.at("ts").get<double>(), move.at("ts").get<double>());
      EXPECT_LE(last, end_of(move));
      last = end_of(move);
    }
    only(trace, "mark", "half \"way\"");
    const json span = only(trace, "mark", "span\n");
    const json inside = only(trace, "move", "inside");
    EXPECT_LE(span.at("ts").get<double>(), inside.at("ts").get<double>());
    EXPECT_GE(end_of(span), end_of(inside));
    EXPECT_TRUE(find(trace, "error", "events lost").empty());
  });
}

TEST_P(InsightTest, MessagesNameNoCollective) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    Tensor tensor(5);
    if (runtime.rank() == 0) send(tensor.view(), 1, {.name = "letter"});
    if (runtime.rank() == 1) receive(tensor.view(), 0, {.name = "letter"});
    barrier();
    const json trace = read_trace(dump_record(folder_.in("record")));
    if (runtime.rank() == 2) return;
    const json move = only(trace, "move", "letter");
    EXPECT_EQ(move.at("args").at("collective"), 0);
    EXPECT_EQ(move.at("args").at("last_rank"), -1);
    EXPECT_EQ(move.at("args").at("peer"), 1 - runtime.rank());
  });
}

Metrics::Operations count_of(const Metrics& metrics, const std::string& collective) {
  const auto found = metrics.operations.find(collective);
  return found == metrics.operations.end() ? Metrics::Operations{} : found->second;
}

std::uint64_t sent(const Metrics& metrics) {
  return metrics.bytes.shared_memory + metrics.bytes.messages + metrics.bytes.gpus;
}

TEST_P(InsightTest, MetricsCountOperationsOfAllSets) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    constexpr std::uint64_t kSums = 7;
    for (std::uint64_t i = 0; i < kSums; ++i) sum(runtime, "x" + std::to_string(i % 2));
    Tensor wrong(runtime.rank() == 1 ? 6 : 5);
    EXPECT_THROW(allreduce(wrong.view(), wrong.view(), {.op = ReduceOp::Sum, .name = "wrong"}),
                 MismatchError);
    ProcessSet& set = runtime.add_process_set({0, 2});
    ProcessSet& in_order = runtime.add_process_set({0, 1, 2}, Matching::ByOrder);
    std::uint64_t sent_in_sets = 0;
    if (set.included()) expect_sum_works(set, "inside");
    expect_sum_works(in_order, "in order");
    const Metrics before = metrics();
    for (ProcessSet* const each : {&runtime.world(), &set, &in_order}) {
      if (each->included()) sent_in_sets += each->metrics().bytes_sent;
    }
    EXPECT_EQ(sent(before), sent_in_sets);
    EXPECT_GT(before.bytes.headers, 0U);
    runtime.remove_process_set(set);
    runtime.remove_process_set(in_order);
    const Metrics after = metrics();
    EXPECT_GE(sent(after), sent_in_sets) << "what removed sets have sent is forgotten";
    const std::uint64_t member = runtime.rank() == 1 ? 0 : 1;
    const std::uint64_t sums = kSums + 1 + member + 1;
    EXPECT_EQ(count_of(after, "allreduce").ended, sums);
    EXPECT_EQ(count_of(after, "allreduce").failed, 1U);
    EXPECT_EQ(count_of(after, "add_process_set").ended, 2U);
    EXPECT_EQ(count_of(after, "remove_process_set").ended, 2U);
    EXPECT_EQ(after.move.count(), sums - 1 + 4) << "all but what failed";
    EXPECT_EQ(after.queue.count(), after.move.count());
    EXPECT_EQ(after.late_seconds.size(), 3U);
    EXPECT_EQ(after.late_seconds[static_cast<std::size_t>(runtime.rank())], 0.0);
    EXPECT_EQ(after.stalls, 0U);
    EXPECT_EQ(after.records, 0U);
    dump_record(folder_.in("record"));
    EXPECT_EQ(metrics().records, 1U);
    join();
    EXPECT_EQ(count_of(metrics(), "allreduce").ended, sums) << "a join is no collective";
  });
}

TEST_P(InsightTest, MetricsCountBytesByPath) {
  const bool shares_memory = GetParam().network.nodes == 1;
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    const auto others = static_cast<std::uint64_t>(runtime.size() - 1);
    Tensor own(5);
    Rows rows;
    const Metrics before = metrics();
    allgather(own.view(), rows.allocator(), {.name = "rows"});
    const Metrics gathered = metrics();
    const std::uint64_t moved = others * (5 * sizeof(float) + sizeof(std::uint64_t));  // how many
    EXPECT_EQ(gathered.bytes.shared_memory - before.bytes.shared_memory, shares_memory ? moved : 0);
    EXPECT_EQ(gathered.bytes.messages - before.bytes.messages, shares_memory ? 0 : moved);
    std::vector<double> letters;
    for (const std::int64_t count : {5, 1005}) {
      const Tensor letter(count);
      const std::uint64_t messages = metrics().bytes.messages;
      if (runtime.rank() == 0) send(letter.view(), 1, {.name = "letter"});
      if (runtime.rank() == 1) receive(letter.view(), 0, {.name = "letter"});
      letters.push_back(static_cast<double>(metrics().bytes.messages - messages));
    }
    barrier();
    // With each goes what the two ranks tell one another.
    EXPECT_NEAR(letters[1] - letters[0], runtime.rank() == 0 ? 4000.0 : 0.0, 100.0);
    EXPECT_EQ(count_of(metrics(), "send").ended, runtime.rank() == 0 ? 2U : 0U);
    EXPECT_EQ(count_of(metrics(), "receive").ended, runtime.rank() == 1 ? 2U : 0U);
    EXPECT_EQ(metrics().bytes.gpus, 0U);
  });
}

TEST_P(InsightTest, MetricsAndRecordAgreeOnWhoWasLate) {
  std::latch others_wait(2);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    constexpr int kLate = 1;
    sum(runtime, "x");  // its name is known from now on
    barrier();
    const Metrics before = metrics();
    sum_with_a_late_rank(runtime, kLate, "x", others_wait);
    const Metrics after = metrics();
    const double late = after.late_seconds[kLate] - before.late_seconds[kLate];
    const auto spans = find(read_trace(dump_record(folder_.in("record"))), "negotiate", "ce x");
    EXPECT_NEAR(late, spans.back().at("args").at("late_us").get<double>() * 1e-6, 1e-8);
    if (runtime.rank() == kLate) {
      EXPECT_EQ(late, 0.0);
    } else {
      EXPECT_GE(late, 0.1);
      EXPECT_GE(after.agree.sum - before.agree.sum, late);
      EXPECT_GT(after.blocked_seconds - before.blocked_seconds, 0.0);
    }
  });
}

TEST_P(InsightTest, MetricsFileHasTheLastValuesAfterAnError) {
  Setting setting = GetParam();
  setting.config.metrics = folder_.in("kolo-{rank}.prom");
  setting.config.metrics_labels = "job_id=7";
  std::array<Metrics, 3> last;
  run_runtimes(setting, [&](Runtime& runtime) {
    for (int i = 0; i < 5; ++i) sum(runtime, "x");
    last[static_cast<std::size_t>(runtime.rank())] = metrics();
    std::vector<float> values(runtime.rank() == 1 ? 2 : 1);
    const TensorView view{values.data(), DType::Float32, {std::ssize(values)}};
    EXPECT_THROW(allreduce(view, view, {.name = "differs"}), MismatchError);
  });
  for (std::size_t rank = 0; rank < last.size(); ++rank) {
    const std::string path = folder_.in("kolo-" + std::to_string(rank) + ".prom");
    std::ifstream file(path);
    const auto values = parse_prometheus({std::istreambuf_iterator<char>(file), {}});
    const std::string label = "{rank=\"" + std::to_string(rank) + "\"";
    const std::string end = ",job_id=\"7\"}";
    const std::string allreduce = ",collective=\"allreduce\"" + end;
    EXPECT_EQ(values.at("kolo_operations_total" + label + allreduce), 6);
    EXPECT_EQ(values.at("kolo_failed_operations_total" + label + allreduce), 1);
    EXPECT_EQ(values.at("kolo_move_seconds_count" + label + end), 5);
    EXPECT_EQ(values.at("kolo_move_seconds_sum" + label + end), last[rank].move.sum);
    const json text = json::parse(to_json(last[rank]));
    EXPECT_EQ(text.at("kolo_move_seconds").at("sum"), last[rank].move.sum);
    EXPECT_EQ(text.at("kolo_operations_total").at("allreduce"), 5);
    expect_promtool_accepts(path);
  }
}

TEST(InsightErrorTest, FoldersThatCannotBeWritten) {
  run_runtimes(1, [](Runtime&) {
    const std::string text =
        text_thrown_by<BackendError>([] { dump_record("/proc/none/of/this"); });
    expect_contains(text, "/proc/none/of/this/rank-0.json");
    expect_contains(text, "Choose a folder");
    EXPECT_THROW(start_timeline("/proc/none/of/this"), BackendError);
  });
}

TEST(InsightErrorTest, RecordsDoNotReplaceATimeline) {
  const Folder folder;
  run_runtimes(1, [&](Runtime& runtime) {
    start_timeline(folder.in("both"));
    expect_contains(text_thrown_by<InvalidArgument>([&] { dump_record(folder.in("both")); }),
                    "Choose another folder");
    sum(runtime, "x");
    stop_timeline();
    only(read_trace(folder.in("both"), 0), "move", "x");
    dump_record(folder.in("both"));
    EXPECT_EQ(metadata(read_trace(folder.in("both"), 0)).at("why"), "requested");
  });
}

}  // namespace kolo::test::insight_test
