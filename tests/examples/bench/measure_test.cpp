#include "bench/measure.hpp"

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/control.hpp"
#include "bench/report.hpp"

namespace measure_test {

using bench::Block;
using bench::Label;

/// Ranks whose blocks take prescribed times, with a log of the requests they receive.
class FakeJob : public bench::Job {
 public:
  struct Member {
    Label label;
    std::vector<double> means_us;  ///< one per round, starting with the first
    std::uint64_t wrong = 0;
  };

  FakeJob(std::string name, std::vector<Member> members, std::string& log)
      : name_(std::move(name)), members_(std::move(members)), log_(log) {}

  int ranks() const override { return 2; }
  std::vector<Label> prepare(const bench::Workload&) override {
    rounds_.assign(members_.size(), 0);
    std::vector<Label> labels;
    for (const Member& member : members_) labels.push_back(member.label);
    return labels;
  }
  Block run(std::size_t bench_case, int iterations) override {
    log_ += name_ + std::to_string(bench_case) + ' ';
    const double mean = members_[bench_case].means_us.at(rounds_[bench_case]++);
    std::vector<double> calls(static_cast<std::size_t>(iterations), mean);
    calls.back() = 2 * mean;  // one call that takes longer
    return {calls, mean, 0.5, mean / 2};
  }
  std::uint64_t count_wrong(std::size_t bench_case) override { return members_[bench_case].wrong; }

 private:
  std::string name_;
  std::vector<Member> members_;
  std::string& log_;
  std::vector<std::size_t> rounds_;
};

const bench::Workload kWorkload{bench::Operation::AllReduce, kolo::DType::Float32, {250}};

Label baseline(const std::string& reference) {
  return {.algorithm = "MPI", .placement = "private", .reference = reference};
}

TEST(Measure, CasesTakeTurnsAndEachFollowsEachOther) {
  constexpr int kRounds = 30;
  const std::vector<double> means(kRounds + 1, 9);
  std::string log;
  FakeJob kolo("k", {{{"a", "staged"}, means}, {{"b", "window"}, means}}, log);
  FakeJob mpi("m", {{baseline("MPI"), means}}, log);
  bench::measure({&kolo, &mpi}, kWorkload, {.warmup = 1, .rounds = kRounds, .iterations = 1});

  std::istringstream stream(log);
  const std::vector<std::string> blocks(std::istream_iterator<std::string>(stream), {});
  ASSERT_EQ(blocks.size(), 3u * (kRounds + 1));
  std::set<std::pair<std::string, std::string>> successions;
  for (std::size_t i = 0; i < blocks.size(); i += 3) {
    EXPECT_EQ((std::set<std::string>{blocks[i], blocks[i + 1], blocks[i + 2]}),
              (std::set<std::string>{"k0", "k1", "m0"}));
    successions.insert({blocks[i], blocks[i + 1]});
    successions.insert({blocks[i + 1], blocks[i + 2]});
  }
  EXPECT_EQ(successions.size(), 6u);
}

TEST(Measure, RowsExcludeTheWarmUp) {
  std::string log;
  FakeJob kolo("k", {{{"a", "staged"}, {100, 4, 2, 3}, 7}}, log);
  const auto rows =
      bench::measure({&kolo}, kWorkload, {.warmup = 1, .rounds = 3, .iterations = 40});
  ASSERT_EQ(rows.size(), 1U);
  const bench::Row& row = rows[0];
  EXPECT_EQ(row.bytes, 1000U);
  EXPECT_EQ(row.count, 250U);
  EXPECT_DOUBLE_EQ(row.min_us, 2);
  EXPECT_DOUBLE_EQ(row.median_us, 3);
  EXPECT_DOUBLE_EQ(row.p99_us, 6);  // of 120 calls, of which 3 take 8, 6 and 4: the 119th
  EXPECT_DOUBLE_EQ(row.host_us, 1.5);
  EXPECT_DOUBLE_EQ(row.algbw_gbps, 1.0 / 3);
  EXPECT_DOUBLE_EQ(row.busbw_gbps, 1.0 / 3);  // the factor of two ranks is 1
  EXPECT_DOUBLE_EQ(row.cpu_s, 1.5);
  EXPECT_EQ(row.wrong, 7U);
  EXPECT_EQ(row.calls, 120);
  EXPECT_TRUE(row.ratios.empty());
}

TEST(Measure, RatiosAreOfBlocksOfOneRoundAndOfTheBetterBaseline) {
  std::string log;
  FakeJob kolo("k", {{{"a", "staged"}, {1, 4, 9}}}, log);
  FakeJob mpi("m", {{baseline("MPI"), {9, 9, 9}}, {baseline("MPI"), {2, 4, 6}}}, log);
  const auto rows = bench::measure({&kolo, &mpi}, kWorkload, {.warmup = 0, .rounds = 3});
  ASSERT_EQ(rows[0].ratios.size(), 1U);
  EXPECT_DOUBLE_EQ(rows[0].ratios[0].second.median, 1);  // of 0.5, 1, 1.5
  EXPECT_DOUBLE_EQ(rows[0].ratios[0].second.interval.low, 0.5);
  EXPECT_DOUBLE_EQ(rows[0].ratios[0].second.interval.high, 1.5);
  EXPECT_DOUBLE_EQ(rows[1].ratios[0].second.median, 2.25);  // of 4.5, 2.25, 1.5
  EXPECT_DOUBLE_EQ(rows[2].ratios[0].second.median, 1);
}

TEST(Measure, EveryReferenceHasARatioOfItsOwn) {
  std::string log;
  FakeJob kolo("k", {{{"a", "staged"}, {6}}}, log);
  FakeJob mpi("m", {{baseline("each"), {3}}, {baseline("flat"), {12}}}, log);
  const auto rows = bench::measure({&kolo, &mpi}, kWorkload, {.warmup = 0, .rounds = 1});
  ASSERT_EQ(rows[0].ratios.size(), 2U);
  EXPECT_EQ(rows[0].ratios[0].first, "each");
  EXPECT_DOUBLE_EQ(rows[0].ratios[0].second.median, 2);
  EXPECT_EQ(rows[0].ratios[1].first, "flat");
  EXPECT_DOUBLE_EQ(rows[0].ratios[1].second.median, 0.5);

  const bench::Options options;
  const bench::Report report{options, 2, "mpi", {}, rows, {}, {"Open MPI v4.1.4", "cma"}};
  const std::string head = bench::table_head(report);
  EXPECT_NE(head.find("\nMPI: Open MPI v4.1.4, single copy inside the node: cma\n"),
            std::string::npos)
      << head;
  const auto json = nlohmann::json::parse(bench::to_json(report));
  EXPECT_EQ(json["mpi"]["single_copy"], "cma");
  EXPECT_EQ(json["rows"][0]["ratio"], 2);
  EXPECT_EQ(json["rows"][0]["ratio_to_flat_high"], 0.5);
  EXPECT_TRUE(json["rows"][1]["is_baseline"]);
}

// The figures of nccl-tests' documentation.
TEST(Measure, BusFactorsAreThoseOfNcclTests) {
  using bench::Operation;
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::AllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::ReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::AllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::AllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bench::bus_factor(Operation::Broadcast, 4), 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bench::bus_factor(static_cast<Operation>(i), 1), 0);
}

TEST(Report, WithoutBaselineRatiosAreNull) {
  std::string log;
  FakeJob kolo("k", {{{"a", "staged"}, {6}}}, log);
  const auto rows = bench::measure({&kolo}, kWorkload, {.warmup = 0, .rounds = 1});
  const bench::Options options;
  const auto json = nlohmann::json::parse(bench::to_json({options, 2, "", {}, rows}));
  EXPECT_TRUE(json["baseline"].is_null());
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_TRUE(json["gpu"].is_null());
  EXPECT_TRUE(json["mpi"].is_null());
  EXPECT_TRUE(json["rows"][0]["ratio"].is_null());
}

TEST(Report, OfAGpuNamesItAndReportsTheHostsTime) {
  std::string log;
  FakeJob job(
      "g",
      {{{"kolo", bench::kDevice}, {3}},
       {{.algorithm = "ncclAllReduce ring", .placement = bench::kDevice, .reference = "ring"}, {2}},
       {{.algorithm = "ncclAllReduce flat", .placement = bench::kDevice, .reference = "flat"}, {4}},
       {{.algorithm = "ncclAllReduce auto", .placement = bench::kDevice, .reference = "auto"},
        {1.5}}},
      log);
  const auto rows = bench::measure({&job}, kWorkload, {.warmup = 0, .rounds = 1});
  bench::Options options;
  options.device = kolo::DeviceKind::Cuda;
  const bench::Report report{options, 2,    "nccl",
                             {},      rows, {"H", "570.1 (CUDA 12.8)", "13.0", "2.28.9", "Ring"}};
  const std::string head = bench::table_head(report);
  EXPECT_NE(
      head.find("\nH, driver 570.1 (CUDA 12.8), CUDA 13.0, NCCL 2.28.9 with NCCL_ALGO=Ring\n"),
      std::string::npos)
      << head;
  for (const char* const column : {"host us", "bus GB/s", "x ring", "x auto"}) {
    EXPECT_NE(head.find(column), std::string::npos) << column;
  }
  EXPECT_NE(bench::table_line(report, rows[0]).find(" 1.5 "), std::string::npos);
  const auto json = nlohmann::json::parse(bench::to_json(report));
  EXPECT_EQ(json["device"], "cuda");
  EXPECT_EQ(json["gpu"]["nccl_algo"], "Ring");
  EXPECT_EQ(json["baseline"], "nccl");
  EXPECT_EQ(json["rows"][0]["host_us"], 1.5);
  EXPECT_EQ(json["rows"][0]["ratio"], 1.5);
  EXPECT_EQ(json["rows"][0]["ratio_to_auto"], 2);
  EXPECT_EQ(json["rows"][0]["ratio_to_flat"], 0.75);
  std::vector<std::string> order;  // the order of columns
  for (const auto& [reference, ratio] : rows[0].ratios) order.push_back(reference);
  EXPECT_EQ(order, (std::vector<std::string>{"ring", "auto", "flat"}));
  const bench::Report beside{options, 2, "nccl in the same processes", {}, rows};
  EXPECT_NE(bench::table_head(beside).find("x NCCL"), std::string::npos);
  EXPECT_EQ(bench::table_head(beside).find("MPI"), std::string::npos);
}

TEST(Lead, WrongElementsMakeTheExitStatus) {
  for (const std::uint64_t wrong : {0U, 3U}) {
    std::string log;
    FakeJob kolo("k", {{{"a", "staged"}, {6}, wrong}}, log);
    bench::Options options;
    options.max_bytes = options.min_bytes;
    options.warmup = 0;
    options.rounds = 1;
    EXPECT_EQ(bench::control(options, "", {&kolo}, nullptr), wrong > 0 ? bench::kSomeWrong : 0);
  }
}

TEST(Plot, HasALineAndANameForEachCase) {
  std::string log;
  FakeJob kolo("k", {{{"a<b", "staged"}, {6, 7}}, {{"c", "window"}, {8, 9}}}, log);
  const auto rows = bench::measure({&kolo}, kWorkload, {.warmup = 0, .rounds = 1});
  const bench::Options options;
  const std::string svg = bench::to_svg({options, 2, "", {}, rows});
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 2U);
  for (const char* const text : {"a&lt;b, staged", "c, window", "bytes", "median time"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace measure_test
