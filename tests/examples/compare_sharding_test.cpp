#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "compare/report.hpp"

namespace compare_sharding_test {

using compare::Largest;
using compare::MemoryUse;
using Json = nlohmann::ordered_json;

struct Search {
  Largest largest;
  int measurements = 0;
  int max_blocks = 0;
};

/// Among models that need `bytes(blocks)`.
template <class Bytes>
Search search(const Bytes& bytes, std::size_t budget) {
  Search result;
  result.largest = compare::find_largest(
      [&](int blocks) {
        ++result.measurements;
        result.max_blocks = std::max(result.max_blocks, blocks);
        return MemoryUse{.parameters = 10 * blocks, .step_bytes = bytes(blocks)};
      },
      budget);
  return result;
}

TEST(FindLargest, ModelsThatGrowEvenly_TakeFewMeasurements) {
  for (const int most : {1, 2, 3, 17, 250, 1023}) {
    const Search found =
        search([](int blocks) { return 300.0 + 7.0 * blocks; }, 300 + 7 * std::size_t(most) + 3);
    EXPECT_EQ(found.largest.blocks, most);
    EXPECT_EQ(found.largest.use.parameters, 10 * most);
    EXPECT_LE(found.measurements, 8) << most;
    EXPECT_LE(found.max_blocks, 4 * most) << most;
  }
}

TEST(FindLargest, ModelsThatGrowUnevenly_AreFoundToo) {
  for (const std::size_t budget : {50U, 1000U, 5000U}) {
    const auto bytes = [](int blocks) { return std::pow(blocks, 1.5) + 2 * std::sqrt(blocks); };
    const Search found = search(bytes, budget);
    EXPECT_LE(bytes(found.largest.blocks), static_cast<double>(budget));
    EXPECT_GT(bytes(found.largest.blocks + 1), static_cast<double>(budget));
    EXPECT_LE(found.measurements, 20);
  }
}

TEST(FindLargest, NoneAndAllMayFit) {
  EXPECT_EQ(search([](int) { return 100.0; }, 99).largest.blocks, 0);
  EXPECT_EQ(search([](int) { return 100.0; }, 100).largest.blocks, 1024);
  EXPECT_EQ(search([](int blocks) { return 100.0 * blocks; }, 100).largest.blocks, 1);
}

TEST(CompareReport, Claims_AreThoseOfTheModeThatShardsMost) {
  const auto table = [](double memory, double low, double high, double largest) {
    Json mode{{"shard", "none"},       {"peak_bytes", 1e8},
              {"memory_to_none", 1.0}, {"step_ms_median", 10.0},
              {"ratio_to_none", 1.0},  {"ratio_low", 1.0},
              {"ratio_high", 1.0},     {"largest_parameters", 5'000'000},
              {"largest_to_none", 1.0}};
    Json modes{mode};
    mode.update({{"shard", "full"},
                 {"memory_to_none", memory},
                 {"ratio_low", low},
                 {"ratio_high", high},
                 {"largest_to_none", largest}});
    modes.push_back(mode);
    return compare::to_table({{"model", "speech"},
                              {"ranks", 4},
                              {"parameters", 6'500'000},
                              {"blocks", 8},
                              {"budget_bytes", 128'000'000},
                              {"modes", modes}});
  };
  const auto expect_in = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::string good = table(0.44, 0.9, 0.99, 1.71);
  expect_in(good, "speech, 6.50 M parameters in 8 blocks, 4 ranks");
  expect_in(good, "full: 56 % less memory (at least 55 %: yes)");
  expect_in(good, "(no slower: yes), models 1.71 times as large (at least 1.7: yes)");
  const std::string bad = table(0.46, 1.01, 1.2, 1.69);
  expect_in(bad, "full: 54 % less memory (at least 55 %: no)");
  expect_in(bad, "(no slower: no), models 1.69 times as large (at least 1.7: no)");
  expect_in(table(0.4, 0.9, 1.1, 2), "(no slower: cannot be told apart)");
}

}  // namespace compare_sharding_test
