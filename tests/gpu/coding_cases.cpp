#include "gpu/coding_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/convert.hpp"
#include "ops/kernels/coded_table.hpp"
#include "support/gpu/fake_coding.hpp"

namespace kolo::test::coding {
namespace {

using base::CodecFormat;
using base::CodecKind;
using Floats = std::vector<float>;

constexpr DType kTypes[] = {DType::Float32, DType::Float16, DType::BFloat16, DType::Float64};
constexpr CodecFormat kFormats[] = {
    {CodecKind::Int8},         {CodecKind::OneBit},    {CodecKind::TopK, 0.01},
    {CodecKind::TopK, 0.2},    {CodecKind::TopK, 1.0}, {CodecKind::RandomK, 0.01},
    {CodecKind::RandomK, 0.3},
};
constexpr float kUntouched = -1234.5F;

/// The values of a case's elements.
enum class Pattern : std::uint8_t { Random, Equal, Zeros, Tiny, Huge, Nan, Infinity };
constexpr Pattern kPatterns[] = {Pattern::Random, Pattern::Equal, Pattern::Zeros,   Pattern::Tiny,
                                 Pattern::Huge,   Pattern::Nan,   Pattern::Infinity};

struct Case {
  CodecFormat format;
  std::size_t count;
  Pattern pattern;

  std::string text() const {
    constexpr const char* kNames[] = {"int8", "one_bit", "top_k", "random_k"};
    constexpr const char* kLooks[] = {"random", "equal", "zeros",   "tiny",
                                      "huge",   "NaN",   "infinite"};
    return std::string(kNames[static_cast<int>(format.kind)]) + " " +
           std::to_string(format.fraction) + " of " + std::to_string(count) + " elements, " +
           kLooks[static_cast<int>(pattern)];
  }
};

std::vector<std::size_t> lengths_of(const CodecFormat& format) {
  if (format.is_sparse()) return {1, 7, 255, 1000, format.block(), 2 * format.block() + 777};
  return {1, 2, 7, 8, 9, 255, 256, 257, 2047, 2048, 2049, 5003};
}

void for_each_case(const std::function<void(const Case&)>& test) {
  for (const CodecFormat& format : kFormats) {
    for (const std::size_t count : lengths_of(format)) {
      for (const Pattern pattern : kPatterns) test({format, count, pattern});
    }
  }
}

Floats values_of(const Case& item, unsigned seed) {
  std::mt19937 random(seed * 7919 + static_cast<unsigned>(item.count));
  std::normal_distribution<float> normal;
  Floats values(item.count);
  constexpr float kMaxFloat = std::numeric_limits<float>::max();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float drawn = normal(random);
    switch (item.pattern) {
      case Pattern::Equal: values[i] = drawn < 0 ? -0.75F : 0.75F; break;
      case Pattern::Zeros: values[i] = drawn < 0 ? -0.0F : drawn > 1 ? drawn : 0.0F; break;
      case Pattern::Tiny: values[i] = drawn * 1e-38F; break;
      case Pattern::Huge: values[i] = i % 3 == 0 ? kMaxFloat : drawn * 1e37F; break;
      default: values[i] = drawn;
    }
  }
  // In every second block, not in its first element.
  const std::size_t block = item.format.block();
  for (std::size_t i = std::min<std::size_t>(5, item.count - 1); i < item.count; i += 2 * block) {
    if (item.pattern == Pattern::Nan) values[i] = std::nanf("");
    if (item.pattern == Pattern::Infinity) values[i] = -std::numeric_limits<float>::infinity();
  }
  return values;
}

std::vector<std::byte> converted(const Floats& values, DType dtype) {
  std::vector<std::byte> elements(values.size() * size_of(dtype));
  base::convert(DType::Float32, values.data(), dtype, elements.data(), values.size());
  return elements;
}

/// Bytes aligned to words, followed by one more word.
struct Words {
  explicit Words(std::size_t bytes) : words((bytes + 3) / 4 + 1, kUntouched) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(words.data()); }
  Floats words;
};

/// Equal bits, except that any NaN equals any NaN.
void expect_same(const Floats& got, const Floats& expected, const std::string& text) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(float)), 0)
        << text << ": element " << i << " is " << got[i] << ", not " << expected[i];
  }
}

void expect_same_payloads(const Words& got, const Words& expected, const std::string& text) {
  for (std::size_t i = 0; i < got.words.size(); ++i) {
    if (std::isnan(got.words[i]) && std::isnan(expected.words[i])) continue;
    ASSERT_EQ(std::memcmp(&got.words[i], &expected.words[i], sizeof(float)), 0)
        << text << ": word " << i << " of the payloads";
  }
}

}  // namespace

void expect_encoded_as_on_the_cpu(CodingOperations& operations) {
  for_each_case([&](const Case& item) {
    for (const DType dtype : kTypes) {
      for (const auto& [terms, has_residual] : {std::pair(1, false), {1, true}, {3, true}}) {
        const comm::DeviceCodec codec{item.format, terms};
        const std::string text = item.text() + ", " + std::string(name_of(dtype));
        const std::vector<std::byte> elements = converted(values_of(item, 1), dtype);
        Floats expected_residual(item.count + 1, kUntouched);
        for (std::size_t i = 0; i < item.count; ++i) {
          expected_residual[i] = 0.01F * static_cast<float>(i % 7);
        }
        Floats residual = expected_residual;
        Words expected(codec.run_bytes(item.count));
        Words got(codec.run_bytes(item.count));
        comm::CodedRun run{elements.data(), expected.data(), item.count,
                           has_residual ? expected_residual.data() : nullptr};
        encode_run(codec, run, dtype);
        run.to = got.data();
        run.residual = has_residual ? residual.data() : nullptr;
        operations.encode(codec, {&run, 1}, dtype);
        // Conversions and sums of a NaN have other bits on a GPU; random_k hashes them, and top_k's
        // values are not whole words.
        const bool has_other_nan = item.pattern == Pattern::Nan && item.format.is_sparse() &&
                                   (dtype != DType::Float32 || has_residual);
        if (!has_other_nan) expect_same_payloads(got, expected, text);
        expect_same(residual, expected_residual, text + ", residual");
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

void expect_decoded_as_on_the_cpu(CodingOperations& operations) {
  for_each_case([&](const Case& item) {
    for (const int terms : {1, 4}) {
      const comm::DeviceCodec codec{item.format, terms};
      const std::vector<std::byte> elements = converted(values_of(item, 2), DType::Float32);
      Words payloads(codec.run_bytes(item.count));
      encode_run(codec, {elements.data(), payloads.data(), item.count}, DType::Float32);
      for (const DType dtype : kTypes) {
        for (const double factor : {1.0, -0.3}) {
          Words expected((item.count + 1) * size_of(dtype));
          Words got((item.count + 1) * size_of(dtype));
          comm::CodedRun run{payloads.data(), expected.data(), item.count};
          decode_run(codec, run, dtype, factor);
          run.to = got.data();
          operations.decode(codec, {&run, 1}, dtype, factor);
          Floats expected_values(item.count);
          Floats values(item.count);
          base::convert(dtype, expected.data(), DType::Float32, expected_values.data(), item.count);
          base::convert(dtype, got.data(), DType::Float32, values.data(), item.count);
          expect_same(values, expected_values, item.text() + ", " + std::string(name_of(dtype)));
          const std::size_t end = item.count * size_of(dtype);
          ASSERT_TRUE(std::equal(got.data() + end, got.data() + got.words.size() * 4,
                                 expected.data() + end))
              << item.text() << ": written behind the elements";
        }
      }
    }
  });
}

void expect_payloads_added_as_on_the_cpu(CodingOperations& operations) {
  for_each_case([&](const Case& item) {
    const comm::DeviceCodec codec{item.format};
    const std::size_t bytes = codec.run_bytes(item.count);
    for (const int ranks : {2, 3, 5}) {
      const int own = (ranks + static_cast<int>(item.count)) % ranks;
      const DType dtype = kTypes[static_cast<std::size_t>(ranks) % 4];
      Words payloads(static_cast<std::size_t>(ranks - 1) * bytes);
      for (int other = 0; other < ranks - 1; ++other) {
        const auto seed = static_cast<unsigned>(10 + other);
        const std::vector<std::byte> elements = converted(values_of(item, seed), DType::Float32);
        encode_run(codec,
                   {elements.data(), payloads.data() + static_cast<std::size_t>(other) * bytes,
                    item.count},
                   DType::Float32);
      }
      const std::vector<std::byte> elements = converted(values_of(item, 20), dtype);
      for (const bool has_residual : {false, true}) {
        Floats expected_residual(item.count + 1, 0.5F);
        Floats residual = expected_residual;
        Floats expected(item.count + 1, kUntouched);
        Floats got = expected;
        comm::CodedInputs inputs{payloads.data(),
                                 ranks,
                                 own,
                                 elements.data(),
                                 dtype,
                                 item.count,
                                 has_residual ? expected_residual.data() : nullptr};
        add_coded_inputs(item.format, inputs, expected.data());
        if (has_residual) inputs.residual = residual.data();
        operations.add_coded(item.format, inputs, got.data());
        const std::string text = item.text() + ", sum of " + std::to_string(ranks);
        expect_same(got, expected, text);
        expect_same(residual, expected_residual, text + ", residual");
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

void expect_many_runs_encoded(CodingOperations& operations) {
  constexpr std::size_t kRuns = 2 * ops::CodedTable::kCapacity + 3;
  for (const CodecFormat& format : {kFormats[0], kFormats[2]}) {
    const comm::DeviceCodec codec{format};
    const Floats values = values_of({format, 4000, Pattern::Random}, 3);
    const auto* const elements = reinterpret_cast<const std::byte*>(values.data());
    std::vector<comm::CodedRun> runs;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < kRuns; ++i) {
      const std::size_t count = i * 37 % 2900;  // also zero
      runs.push_back({elements + i * sizeof(float), nullptr, count});
      bytes += codec.run_bytes(count);
    }
    Words expected(bytes);
    Words got(bytes);
    for (Words* const to : {&expected, &got}) {
      std::byte* next = to->data();
      for (comm::CodedRun& run : runs) {
        run.to = next;
        next += codec.run_bytes(run.count);
        if (to == &expected) encode_run(codec, run, DType::Float32);
      }
    }
    operations.encode(codec, runs, DType::Float32);
    expect_same_payloads(got, expected, "many runs");
  }
}

}  // namespace kolo::test::coding
