#include "runtime/control/wire.hpp"

#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/control/wire_generated.h"
#include "support/sanitizers.hpp"

namespace kolo::runtime::wire_test {

using flatbuffers::FlatBufferBuilder;

constexpr int kRanks = 1024;  // of the process set

Bits make_bits(int count, int step) {
  Bits bits;
  for (int bit = 0; bit < count; bit += step) bits.set(bit);
  return bits;
}

Header make_header(Bits own, Bits ready) {
  Header header;
  header.exchange = 41;
  header.own = std::move(own);
  header.ready = std::move(ready);
  return header;
}

Request odd_request() {
  constexpr auto kHuge = std::numeric_limits<std::int64_t>::max();
  return {"größe/层.权重 \U0001F4A1",
          Collective::Broadcast,
          {{DType::Bool, {kHuge, 0, -1, std::numeric_limits<std::int64_t>::min()}},
           {DType::UInt8, {}},
           {DType::Float16, {2}}},
          ReduceOp::Custom,
          "xor",
          -0.5,
          std::numeric_limits<double>::denorm_min(),
          JoinDivisor::Active,
          -7,
          DeviceKind::Cuda,
          "fp16",
          CompressionScope::BetweenNodes,
          "window 3 + 4096",
          {kHuge, 0, 4},
          {0, 2, 900},
          -3,
          false,
          "gathering unit 3",
          "the splits add up to 5 rows"};
}

Request default_request() {
  Request request;
  request.name = std::string("with\0zero", 9);
  return request;
}

struct Sample {
  std::string name;
  WireMessage message;
};

void PrintTo(const Sample& sample, std::ostream* out) { *out << sample.name; }

std::vector<Sample> report_samples() {
  Report full{7,
              {{odd_request(), -1, {0, 1, 900}, {1}, true},
               {{}, 0, {3}, {}, false},
               {{}, Header::kMaxBits - 1, {2, 5}, {2, 5}, false},
               {default_request(), -1, {4}, {4}, false}},
              {0, 2, 1023}};
  Report large{std::numeric_limits<std::uint64_t>::max(), {}, {}};
  for (int i = 0; i < (test::kIsSanitized ? 15 : 40); ++i) {
    Request request;
    request.name = "tensor." + std::to_string(i) + std::string(static_cast<std::size_t>(i), 'x');
    for (int j = 0; j < i % 3; ++j) {
      request.tensors.push_back(
          {DType::Int32, std::vector<std::int64_t>(static_cast<std::size_t>(i % 5), i)});
    }
    large.items.push_back({request, -1, {i, i + 1}, {}, i % 2 == 0});
  }
  return {{"EmptyReport", ControlMessage{Report{}}},
          {"FullReport", ControlMessage{full}},
          {"LargeReport", ControlMessage{large}}};
}

std::vector<Sample> verdict_samples() {
  Verdict full;
  full.exchange = 9;
  full.evicted = {5, 0, 8191};
  full.added = {{63, odd_request()}, {64, default_request()}};
  full.errors = {{"a", {ErrorKind::Mismatch, "'a': shape differs: [3] on rank 0, [4] on rank 1"}},
                 {"", {ErrorKind::InvalidArgument, ""}},
                 {"b", {ErrorKind::Backend, std::string(3000, 'e')}}};
  full.stalls = {{"层", {0, 1}, {2}}, {"all there", {0}, {}}};
  full.blocked = {"one", "", "\xff not UTF-8"};
  return {{"EmptyVerdict", ControlMessage{Verdict{}}}, {"FullVerdict", ControlMessage{full}}};
}

std::vector<Sample> header_exchange_samples() {
  Header flags = make_header(make_bits(1, 1), {});
  flags.has_unknown = flags.has_expired = flags.has_stalled = true;
  flags.joined = make_bits(300, 7);
  flags.shutdown_rank = 1023;
  flags.thrower_rank = 511;
  const Header wide = make_header(make_bits(5000, 1), make_bits(5000, 7));
  const Header widest = make_header(make_bits(Header::kMaxBits, 63), {});
  const auto message = [](HeaderExchangeMessage content) {
    return WireMessage{std::move(content)};
  };
  return {
      {"HeaderUpOfDefaults", message(HeaderUp{Header{}})},
      {"HeaderUpWithFlags", message(HeaderUp{flags})},
      {"HeaderUpWith5000Bits", message(HeaderUp{wide})},
      {"HeaderDownOfDefaults", message(HeaderDown{Header{}})},
      {"HeaderDownWithFlags", message(HeaderDown{flags})},
      {"HeaderDownWidest", message(HeaderDown{widest})},
      {"WakeUpRequestZero", message(WakeUpRequest{0})},
      {"WakeUpRequestHighest", message(WakeUpRequest{std::numeric_limits<std::uint64_t>::max()})},
      {"Lost", message(Lost{{3, "died: its process has ended"}})},
      {"LostWithoutText", message(Lost{{0, ""}})},
      {"Left", message(Left{})},
      {"Ping", message(Ping{})},
      {"Heartbeat", message(Heartbeat{})}};
}

std::vector<Sample> all_samples() {
  std::vector<Sample> all = report_samples();
  for (Sample& sample : verdict_samples()) all.push_back(std::move(sample));
  for (Sample& sample : header_exchange_samples()) all.push_back(std::move(sample));
  return all;
}

std::string rejection_of(const std::vector<std::byte>& bytes) {
  try {
    decode(bytes, kRanks);
  } catch (const BackendError& error) {
    return error.what();
  }
  return "";
}

class WireTest : public testing::TestWithParam<Sample> {};

TEST_P(WireTest, RoundTrip_KeepsEverything) {
  EXPECT_EQ(decode(encode(GetParam().message), kRanks), GetParam().message);
}

TEST_P(WireTest, EveryTruncation_IsRejectedOrHarmless) {
  const std::vector<std::byte> whole = encode(GetParam().message);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // A vector of exactly this size, so that AddressSanitizer reports a read past its end.
    const std::vector<std::byte> cut(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(size));
    try {
      EXPECT_EQ(decode(cut, kRanks), GetParam().message)
          << size << " of " << whole.size() << " bytes";
    } catch (const BackendError&) {
    }
  }
  EXPECT_NE(rejection_of({whole.begin(), whole.begin() + 12}), "");
}

TEST_P(WireTest, EveryFlippedBit_IsRejectedOrAnotherMessage) {
  const std::vector<std::byte> whole = encode(GetParam().message);
  std::size_t rejected = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> damaged(whole);
      damaged[i] ^= std::byte{1} << bit;
      try {
        const WireMessage message = decode(damaged, kRanks);
        encode(message);  // reads the whole message
      } catch (const BackendError&) {
        ++rejected;
      }
    }
  }
  EXPECT_GE(rejected, 32u);  // at least all damage to the identifier
}

INSTANTIATE_TEST_SUITE_P(Messages, WireTest, testing::ValuesIn(all_samples()),
                         [](const auto& instance) { return instance.param.name; });

TEST(WireEncodeTest, LargeEnoughBuffer_IsReused) {
  std::vector<std::byte> buffer;
  buffer.reserve(4096);
  const std::byte* memory = buffer.data();
  const std::vector<std::byte> bytes =
      encode(HeaderExchangeMessage{WakeUpRequest{5}}, std::move(buffer));
  EXPECT_EQ(bytes.data(), memory);
  EXPECT_EQ(decode(bytes, kRanks), WireMessage(HeaderExchangeMessage{WakeUpRequest{5}}));
}

TEST(WireEncodeTest, HeaderSize_DependsOnTheWordsOfItsBitsOnly) {
  const auto size_of_header = [](int bits, std::uint64_t exchange) {
    Header header = make_header(make_bits(bits, 1), make_bits(bits, 1));
    header.exchange = exchange;
    return encode(HeaderExchangeMessage{HeaderUp{header}}).size();
  };
  EXPECT_EQ(size_of_header(1, 1), size_of_header(64, std::uint64_t{1} << 60));
  EXPECT_EQ(size_of_header(64, 1) + 2 * 8, size_of_header(65, 1));
}

}  // namespace kolo::runtime::wire_test
