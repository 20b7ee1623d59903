// Algorithms that compress while they run give the same bits as compressing the whole tensor before
// and decompressing it afterwards.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "compression/registry.hpp"
#include "contract/checked_communicator.hpp"
#include "contract/ranks.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/registry.hpp"

namespace kolo::test::compressed_reductions_test {

using Bytes = std::vector<std::byte>;
using Case = std::tuple<Algorithm, int, std::string>;

constexpr std::size_t kWindowBytes = 4096;

std::vector<Algorithm> compressing() {
  std::vector<Algorithm> algorithms;
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.compresses) algorithms.push_back(algorithm);
  }
  return algorithms;
}

class CompressedReductionsTest : public testing::TestWithParam<Case> {
 protected:
  const Algorithm& algorithm() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  const Compressor& compressor() const { return registry_.find(std::get<2>(GetParam())); }
  bool is_scattered() const { return algorithm().collective == Collective::ReduceScatter; }

  /// Values of all magnitudes that 16 bits can hold; most are rounded.
  template <class T>
  static Bytes input(int rank, std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::uniform_real_distribution<T> exponent(-10, 10);
    Bytes bytes(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      const T value = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1 : -1);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
    return bytes;
  }

  std::vector<std::size_t> counts(std::size_t count) const {
    std::vector<std::size_t> counts;
    for (const ops::Range& piece : ops::pieces_of(count, size())) counts.push_back(piece.length);
    return counts;
  }

  /// The result of one rank. `buffer`, of type `dtype`, is the input, and also the output unless
  /// results are scattered.
  Bytes run(const Rank& rank, Bytes buffer, DType dtype, const Compressor* compressor,
            std::size_t segment_bytes) const {
    const std::size_t count = buffer.size() / size_of(dtype);
    const std::vector<std::size_t> counts = this->counts(count);
    const std::size_t own = counts[static_cast<std::size_t>(rank.rank)];
    Bytes scattered(own * size_of(dtype));
    CollectiveCall call{.input = buffer.data(),
                        .output = is_scattered() ? scattered.data() : buffer.data(),
                        .count = count,
                        .dtype = dtype,
                        .reduction = {ReduceOp::Sum, 0.75, 0.5},
                        .compressor = compressor,
                        .segment_bytes = segment_bytes};
    if (is_scattered()) call.counts = counts;
    std::mt19937_64 random = random_of(rank);
    finish(run_checked(rank, algorithm(), call), rank, random);
    return is_scattered() ? scattered : buffer;
  }

  template <class T>
  void check(DType dtype, std::size_t count, std::size_t segment_bytes) const {
    const DType wire = compressor().wire_dtype(dtype);
    run_on_ranks(size(), kWindowBytes, 1, [&](const Rank& rank) {
      const Bytes tensor = input<T>(rank.rank, count);
      Bytes payload(compressor().payload_bytes(dtype, count));
      compressor().compress(dtype, tensor.data(), count, payload.data());
      payload = run(rank, payload, wire, nullptr, segment_bytes);
      Bytes expected(payload.size() / size_of(wire) * sizeof(T));
      compressor().decompress(dtype, payload.data(), expected.size() / sizeof(T), expected.data());

      const std::uint64_t moved = rank.window.bytes_moved();
      const Bytes got = run(rank, tensor, dtype, &compressor(), segment_bytes);
      EXPECT_EQ(rank.window.bytes_moved(), 2 * moved) << "compressed bytes move";
      EXPECT_TRUE(got == expected) << "rank " << rank.rank << ", " << count << " of "
                                   << name_of(dtype) << ", segments of " << segment_bytes;
    });
  }

 private:
  compression::Registry registry_;
};

INSTANTIATE_TEST_SUITE_P(BuiltIn, CompressedReductionsTest,
                         testing::Combine(testing::ValuesIn(compressing()),
                                          testing::Values(1, 2, 3, 4, 7),
                                          testing::Values("fp16", "bf16")),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param).collective)) + "_" +
                                  std::string(std::get<0>(test.param).name) + "_world" +
                                  std::to_string(std::get<1>(test.param)) + "_" +
                                  std::get<2>(test.param);
                         });

TEST_P(CompressedReductionsTest, GiveWhatCompressingBeforehandGives) {
  for (const std::size_t count : {0u, 1u, 5u, 33u, 1000u, 5003u}) {
    for (const std::size_t segment_bytes : {128u, 4096u}) {
      check<float>(DType::Float32, count, segment_bytes);
      check<double>(DType::Float64, count, segment_bytes);
    }
  }
}

}  // namespace kolo::test::compressed_reductions_test
