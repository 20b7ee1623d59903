#include "shard/memory_report.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shard/wire.hpp"

namespace memory_report_test {

using Json = nlohmann::ordered_json;
using kolo::Shard;

constexpr double kElements = 1e6;

// One of `ranks` ranks whose memory matches the formulas exactly.
Json rank_by_formula(Shard shard, double ranks) {
  const double part = kElements / ranks;
  const bool divides_state = shard != Shard::None;
  const bool divides_gradients = shard >= Shard::Gradients;
  const bool is_full = shard == Shard::Full;
  return {{"elements", kElements},
          {"parameters", 4 * (is_full ? part : kElements)},
          {"gradients", 4 * (divides_gradients ? part : kElements)},
          {"state", 8 * (divides_state ? part : kElements)},
          {"gathered", 0},
          {"buckets", divides_gradients ? 0.9 * kElements : 0},
          {"other", 0},
          {"largest_bucket", 0.3 * kElements},
          {"windows_before", 1e9},
          {"peak_of_construction", 0},
          {"peak_of_first_step", 0},
          {"peak_of_step", 0},
          {"live_growth", 1e7},
          {"pss_growth", 1e7},
          {"pss_growth_with_files", 2e7},
          {"bytes_sent", (is_full ? 4 : 8) * kElements * (ranks - 1) / ranks}};
}

// The number of defects if the last of `ranks` ranks has `change` more of `key`.
std::size_t defects(Shard shard, std::size_t ranks, const char* key = "other", double change = 0) {
  std::vector<Json> all(ranks, rank_by_formula(shard, static_cast<double>(ranks)));
  all.back()[key] = all.back()[key].get<double>() + change;
  return shard::MemoryReport(shard, all, static_cast<int>(all.size())).defects().size();
}

TEST(MemoryReport, BytesSent_AreThoseOfOneReductionAndTheGathersBetweenCopies) {
  constexpr std::int64_t kParameters = 400;
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
    EXPECT_EQ(shard::min_bytes_sent(shard, kParameters, 4, 2), 1600 * 2 * 0.75);
  }
  EXPECT_EQ(shard::min_bytes_sent(Shard::Full, kParameters, 4, 4), 1600 * 0.75);
  EXPECT_EQ(shard::min_bytes_sent(Shard::Full, kParameters, 4, 2), 1600 * (0.75 + 2 * 0.25));
  EXPECT_EQ(shard::min_bytes_sent(Shard::Full, kParameters, 4, 1), 1600 * 3 * 0.75);
}

TEST(MemoryReport, WhatTheFormulasSayIsNoDefect) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    for (const unsigned ranks : {2U, 3U, 4U, 7U}) EXPECT_EQ(defects(shard, ranks), 0);
  }
}

TEST(MemoryReport, OneRankWithMoreThanATenthOfAByteMoreIsADefect) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    for (const char* const key : {"parameters", "gradients", "state", "other"}) {
      EXPECT_EQ(defects(shard, 3, key, 0.099 * kElements), 0) << key;
      EXPECT_EQ(defects(shard, 3, key, 0.101 * kElements), 1) << key;
    }
  }
}

TEST(MemoryReport, BucketsCountApartOnlyWhereGradientsAreDivided) {
  EXPECT_EQ(defects(Shard::Optimizer, 4, "buckets", 0.101 * kElements), 1);
  EXPECT_EQ(defects(Shard::Gradients, 2, "buckets", 8192), 0);
  EXPECT_EQ(defects(Shard::Gradients, 2, "buckets", 8193), 1);
}

TEST(MemoryReport, TwoUnitsOfParametersMayBeGathered) {
  EXPECT_EQ(defects(Shard::Full, 2, "gathered", 0.6 * kElements), 0);
  EXPECT_EQ(defects(Shard::Full, 2, "gathered", 0.6 * kElements + 1), 1);
}

TEST(MemoryReport, FourRanksThatDivideGradientsNeedHalfOfTheMemoryAtMost) {
  EXPECT_EQ(defects(Shard::Gradients, 4, "other", 0.099 * kElements), 0);
  const Json large = [] {
    Json rank = rank_by_formula(Shard::Gradients, 4);
    rank["largest_bucket"] = 0.4 * kElements;
    rank["buckets"] = 1.2 * kElements;
    return rank;
  }();
  const shard::MemoryReport report(Shard::Gradients, std::vector<Json>(4, large), 4);
  ASSERT_EQ(report.defects().size(), 1);
  EXPECT_EQ(report.defects()[0], "8.200 bytes per parameter with buckets, more than 8.000");
}

TEST(MemoryReport, TheKernelMustAgreeWithinATenthOverAllRanks) {
  EXPECT_EQ(defects(Shard::None, 4, "pss_growth", 0.39e7), 0);
  EXPECT_EQ(defects(Shard::None, 4, "pss_growth", 0.41e7), 1);
  EXPECT_EQ(defects(Shard::None, 4, "pss_growth", -0.41e7), 1);
}

TEST(MemoryReport, AHundredthMoreBytesMayBeSent) {
  const double least = 8 * kElements * 3 / 4;
  EXPECT_EQ(defects(Shard::Optimizer, 4, "bytes_sent", 0.009 * least), 0);
  EXPECT_EQ(defects(Shard::Optimizer, 4, "bytes_sent", 0.011 * least), 1);
}

}  // namespace memory_report_test
