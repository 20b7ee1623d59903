#include "ops/kernels/convert_table.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"

namespace kolo::ops::convert_table_test {

/// The elements of one run that one block converts.
struct Given {
  std::size_t run;
  std::uint64_t begin;
  std::uint64_t end;
};

/// Addresses that identify runs; they are not read.
std::vector<comm::DeviceRun> runs_of(const std::vector<std::size_t>& counts) {
  static std::array<std::byte, 5000> addresses;
  std::vector<comm::DeviceRun> runs;
  for (const std::size_t count : counts) {
    std::byte* const address = addresses.data() + runs.size();
    runs.push_back({address, address, count});
  }
  return runs;
}

/// The work of all blocks of all tables, in order.
std::vector<Given> give_out(const std::vector<comm::DeviceRun>& runs, std::uint64_t blocks) {
  std::vector<Given> given;
  std::span<const comm::DeviceRun> left(runs);
  while (!left.empty()) {
    const ConvertTable table = take_runs(left, blocks);
    EXPECT_LE(table.blocks(), blocks);
    std::uint64_t elements = 0;
    for (std::uint64_t block = 0; block < table.blocks(); ++block) {
      std::uint64_t of_block = 0;
      for_each_piece(
          table, block, [&](std::uint32_t run, std::uint64_t begin, std::uint64_t count) {
            given.push_back(
                {static_cast<std::size_t>(table.from[run] - runs[0].from), begin, begin + count});
            EXPECT_EQ(table.from[run], table.to[run]);
            EXPECT_GT(count, 0u);
            of_block += count;
          });
      const bool is_last = block + 1 == table.blocks();
      EXPECT_TRUE(is_last ? of_block <= table.share : of_block == table.share);
      elements += of_block;
    }
    EXPECT_EQ(elements, table.elements());
  }
  return given;
}

/// Expects that every element of every run is converted once, in order.
void expect_covered(const std::vector<std::size_t>& counts, std::uint64_t blocks) {
  const std::vector<Given> given = give_out(runs_of(counts), blocks);
  auto next = given.begin();
  for (std::size_t run = 0; run < counts.size(); ++run) {
    std::uint64_t done = 0;
    while (done < counts[run]) {
      ASSERT_NE(next, given.end()) << "run " << run;
      ASSERT_EQ(next->run, run);
      ASSERT_EQ(next->begin, done) << "run " << run;
      done = next->end;
      ++next;
    }
    ASSERT_EQ(done, counts[run]) << "run " << run;
  }
  EXPECT_EQ(next, given.end());
}

TEST(ConvertTableTest, EveryElementIsDoneOnce) {
  for (const std::uint64_t blocks : {1u, 7u, 132u, 2112u}) {
    expect_covered({1}, blocks);
    expect_covered({2048}, blocks);
    expect_covered({2049, 1, 1, 4095}, blocks);
    expect_covered({100'003, 3, 255, 1'000'000, 64, 64, 64}, blocks);
    expect_covered({std::size_t{5} << 31, 3, (std::size_t{1} << 32) + 1}, blocks);
  }
}

TEST(ConvertTableTest, EmptyRunsAreLeftOut) {
  expect_covered({0, 0, 5, 0, 3000, 0}, 4);
  expect_covered({}, 4);
  expect_covered({0}, 4);
  std::vector<std::size_t> counts(1000, 0);
  counts[999] = 17;
  EXPECT_EQ(give_out(runs_of(counts), 4).size(), 1u);
}

TEST(ConvertTableTest, MoreRunsThanATableHoldsTakeSeveral) {
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < 1000; ++i) counts.push_back(i % 5 == 0 ? 0 : i * 37 % 5000 + 1);
  expect_covered(counts, 132);
  const std::vector<comm::DeviceRun> runs = runs_of(counts);
  std::span<const comm::DeviceRun> left(runs);
  std::size_t tables = 0;
  for (; !left.empty(); ++tables) {
    EXPECT_LE(take_runs(left, 132).runs, ConvertTable::kCapacity);
  }
  EXPECT_EQ(tables, 4u);  // 800 nonempty runs
}

TEST(ConvertTableTest, LittleWorkTakesFewBlocks) {
  std::vector<comm::DeviceRun> runs = runs_of({100});
  std::span<const comm::DeviceRun> left(runs);
  EXPECT_EQ(take_runs(left, 2112).blocks(), 1u);
  EXPECT_TRUE(left.empty());
  runs = runs_of({25'000'000});
  left = runs;
  const ConvertTable large = take_runs(left, 2112);
  EXPECT_GT(large.blocks(), 2112u * 9 / 10);
  EXPECT_LE(large.blocks(), 2112u);
}

TEST(ConvertTableTest, TheKernelsParametersFit) { EXPECT_LE(sizeof(ConvertTable) + 64, 32'764u); }

TEST(ConvertTableTest, VectorsBeginWhereBothSidesAllowThem) {
  constexpr std::uint64_t kBase = 4096;
  for (const std::uint64_t from_size : {1u, 2u, 4u, 8u}) {
    for (const std::uint64_t to_size : {1u, 2u, 4u, 8u}) {
      const std::uint64_t width = 16 / std::max(from_size, to_size);
      for (std::uint64_t from_place = 0; from_place < 20; ++from_place) {
        for (std::uint64_t to_place = 0; to_place < 20; ++to_place) {
          const std::uint64_t from = kBase + from_place * from_size;
          const std::uint64_t to = kBase + to_place * to_size;
          const std::uint64_t before =
              elements_before_vectors(from, from_size, to, to_size, width, 1000);
          if (before == 1000) {
            EXPECT_NE(from_place % width, to_place % width);
            continue;
          }
          EXPECT_LT(before, width);
          EXPECT_EQ((from + before * from_size) % (width * from_size), 0u);
          EXPECT_EQ((to + before * to_size) % (width * to_size), 0u);
          EXPECT_LE(elements_before_vectors(from, from_size, to, to_size, width, 2), 2u);
        }
      }
    }
  }
}

TEST(ConvertTableTest, PairsThatReductionsNeedAreThere) {
  int pairs = 0;
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      pairs += is_convertible_on_gpu(static_cast<DType>(from), static_cast<DType>(to)) ? 1 : 0;
    }
  }
  // 4 floating types among themselves; 6 others to themselves, 5 of them to and from int64; int16
  // to and from int32.
  EXPECT_EQ(pairs, 16 + 6 + 10 + 2);
  EXPECT_TRUE(is_convertible_on_gpu(DType::Bool, DType::Int64));
  EXPECT_TRUE(is_convertible_on_gpu(DType::Int32, DType::Int16));
  EXPECT_FALSE(is_convertible_on_gpu(DType::Int8, DType::Int32));
  EXPECT_FALSE(is_convertible_on_gpu(DType::Int64, DType::Float64));
}

std::string error_of(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion) {
  try {
    check_conversion(runs, conversion);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ConvertTableTest, ErrorsSayWhatWasExpected) {
  EXPECT_EQ(error_of({}, {.from = DType::Int64, .to = DType::Int8, .divisor = 3}), "accepted");
  EXPECT_EQ(error_of({}, {.from = DType::Float32, .to = DType::Int32}),
            "GPU convert from float32 to int32: no such kernel; floating types convert among "
            "themselves, integers to and from int64, int16 to and from int32");
  EXPECT_EQ(error_of({}, {.from = DType::Int32, .to = DType::Int32, .divisor = 3}),
            "GPU convert from int32 to int32: expected a divisor of 1, or a positive one from "
            "int64, got 3");
  EXPECT_NE(error_of({}, {.from = DType::Int64, .to = DType::Int64, .divisor = 0}), "accepted");
  alignas(16) static std::array<std::byte, 64> memory;
  const std::array<comm::DeviceRun, 2> runs{comm::DeviceRun{memory.data(), memory.data() + 1, 0},
                                            comm::DeviceRun{memory.data() + 2, memory.data(), 3}};
  EXPECT_EQ(error_of(runs, {.from = DType::Float16, .to = DType::Float32}), "accepted");
  EXPECT_EQ(error_of(runs, {.from = DType::Float32, .to = DType::Float32}),
            "GPU convert from float32 to float32: expected addresses of elements, got a run of 3 "
            "elements that lies between them");
}

}  // namespace kolo::ops::convert_table_test
