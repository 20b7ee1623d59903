#include "runtime/control/wire.hpp"

#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/control/wire_generated.h"
#include "support/errors.hpp"
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
              {0, 2, 1023},
              {{4, "in step 812: backward, for 12.4 s"}, {1023, ""}}};
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
  full.stalls = {{"层", {0, 1}, {2}, ". Rank 2 is 层"}, {"all there", {0}, {}}};
  full.blocked = {"one", "", "\xff not UTF-8"};
  return {{"EmptyVerdict", ControlMessage{Verdict{}}}, {"FullVerdict", ControlMessage{full}}};
}

std::vector<Sample> header_exchange_samples() {
  Header flags = make_header(make_bits(1, 1), {});
  flags.has_unknown = flags.has_expired = flags.has_stalled = true;
  flags.joined = make_bits(300, 7);
  flags.shutdown_rank = 1023;
  flags.thrower_rank = 511;
  flags.newest = {-7, 1023};
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
      {"Lost", message(LostRank{3, "died: its process has ended"})},
      {"LostWithoutText", message(LostRank{0, ""})},
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

/// Completes an envelope with the body that `make` builds.
std::vector<std::byte> craft(
    wire::Body kind, const std::function<flatbuffers::Offset<void>(FlatBufferBuilder&)>& make,
    std::uint32_t version = kWireVersion) {
  FlatBufferBuilder builder;
  const auto body = make(builder);
  builder.Finish(wire::CreateEnvelope(builder, version, kind, body), wire::EnvelopeIdentifier());
  std::vector<std::byte> bytes(builder.GetSize());
  std::memcpy(bytes.data(), builder.GetBufferPointer(), bytes.size());
  return bytes;
}

struct RawRequest {
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t device = 0;
  std::uint8_t join_divisor = 0;
  std::uint8_t compression_scope = 0;
  std::vector<int> members{};
};

/// A Verdict that assigns `bit` to a request.
std::vector<std::byte> craft_addition(int bit, RawRequest raw) {
  return craft(wire::Body::Verdict, [&](FlatBufferBuilder& builder) {
    const std::vector<std::int64_t> shape;
    const std::vector<flatbuffers::Offset<wire::TensorType>> tensors{
        wire::CreateTensorTypeDirect(builder, raw.dtype, &shape)};
    const std::vector<std::int64_t> rows;
    const auto request = wire::CreateRequestDirect(
        builder, "x", raw.collective, &tensors, raw.op, "", 1, 1, raw.join_divisor, 0, raw.device,
        "", raw.compression_scope, "", &rows, &raw.members, 0, true, "", "");
    const std::vector<flatbuffers::Offset<wire::Addition>> added{
        wire::CreateAddition(builder, bit, request)};
    const std::vector<int> evicted;
    const std::vector<flatbuffers::Offset<wire::NameError>> errors;
    const std::vector<flatbuffers::Offset<wire::Stall>> stalls;
    const std::vector<flatbuffers::Offset<flatbuffers::String>> waiting;
    return wire::CreateVerdictDirect(builder, 1, &evicted, &added, &errors, &stalls, &waiting)
        .Union();
  });
}

const std::vector<flatbuffers::Offset<wire::Activity>> kNoActivities;

std::vector<std::byte> craft_report(int bit, const std::vector<int>& ranks) {
  return craft(wire::Body::Report, [&](FlatBufferBuilder& builder) {
    const std::vector<int> none;
    const std::vector<flatbuffers::Offset<wire::Item>> items{
        wire::CreateItemDirect(builder, 0, bit, &ranks, &none)};
    return wire::CreateReportDirect(builder, 1, &items, &none, &kNoActivities).Union();
  });
}

/// A Verdict whose names all share one string.
std::vector<std::byte> craft_waiting(std::size_t names, std::size_t letters) {
  return craft(wire::Body::Verdict, [&](FlatBufferBuilder& builder) {
    const std::vector<flatbuffers::Offset<flatbuffers::String>> waiting(
        names, builder.CreateString(std::string(letters, 'x')));
    const std::vector<int> evicted;
    const std::vector<flatbuffers::Offset<wire::Addition>> added;
    const std::vector<flatbuffers::Offset<wire::NameError>> errors;
    const std::vector<flatbuffers::Offset<wire::Stall>> stalls;
    return wire::CreateVerdictDirect(builder, 1, &evicted, &added, &errors, &stalls, &waiting)
        .Union();
  });
}

/// A Report whose items all share one table.
std::vector<std::byte> craft_items(std::size_t count) {
  return craft(wire::Body::Report, [&](FlatBufferBuilder& builder) {
    const std::vector<int> ranks{0};
    const std::vector<flatbuffers::Offset<wire::Item>> items(
        count, wire::CreateItemDirect(builder, 0, 5, &ranks, &ranks));
    return wire::CreateReportDirect(builder, 1, &items, &ranks, &kNoActivities).Union();
  });
}

std::vector<std::byte> craft_header(std::size_t words, int shutdown_rank) {
  return craft(wire::Body::HeaderUp, [&](FlatBufferBuilder& builder) {
    const std::vector<std::uint64_t> own(words, 1);
    const std::vector<std::uint64_t> ready;
    const std::vector<std::uint64_t> joined;
    return wire::CreateHeaderDirect(builder, 1, false, false, false, shutdown_rank, &joined, &own,
                                    &ready)
        .Union();
  });
}

std::vector<std::byte> craft_empty(wire::Body kind, std::uint32_t version = kWireVersion) {
  return craft(
      kind, [](FlatBufferBuilder& builder) { return wire::CreateEmpty(builder).Union(); }, version);
}

TEST(WireDecodeTest, OtherVersion_NamesBoth) {
  const std::string text = rejection_of(craft_empty(wire::Body::Left, 77));
  test::expect_contains(text, "version 77");
  test::expect_contains(text, "version " + std::to_string(kWireVersion));
}

TEST(WireDecodeTest, OtherVersionWithUnreadableBody_NamesBothToo) {
  FlatBufferBuilder builder;
  const auto start = builder.StartTable();
  builder.AddElement<std::uint32_t>(4, 77, 0);   // the version, at its place in every version
  builder.AddElement<std::uint64_t>(8, 123, 0);  // a number where this version has an offset
  builder.Finish(flatbuffers::Offset<wire::Preamble>(builder.EndTable(start)),
                 wire::EnvelopeIdentifier());
  std::vector<std::byte> bytes(builder.GetSize());
  std::memcpy(bytes.data(), builder.GetBufferPointer(), bytes.size());
  const std::string text = rejection_of(bytes);
  test::expect_contains(text, "version 77");
}

TEST(WireDecodeTest, NotAMessage_IsRejected) {
  EXPECT_NE(rejection_of({}), "");
  EXPECT_NE(rejection_of(std::vector<std::byte>(64)), "");
  EXPECT_NE(rejection_of(std::vector<std::byte>(64, std::byte{0xff})), "");
  std::vector<std::byte> other = craft_empty(wire::Body::Left);
  std::memcpy(other.data() + 4, "ELSE", 4);
  test::expect_contains(rejection_of(other), "none of Kolo's");
}

TEST(WireDecodeTest, UnknownKind_IsRejected) {
  test::expect_contains(rejection_of(craft_empty(wire::Body{200})), "unknown kind 200");
  test::expect_contains(rejection_of(craft_empty(wire::Body::NONE)), "unknown kind 0");
}

struct Rejection {
  std::string name;
  std::vector<std::byte> bytes;
  std::string text;
};

void PrintTo(const Rejection& rejection, std::ostream* out) { *out << rejection.name; }

class WireRejectionTest : public testing::TestWithParam<Rejection> {};

TEST_P(WireRejectionTest, Text_SaysWhatIsWrong) {
  const std::string text = rejection_of(GetParam().bytes);
  test::expect_contains(text, GetParam().text);
}

std::vector<Rejection> rejections() {
  constexpr int kLargestRank = std::numeric_limits<int>::max();
  return {{"Collective", craft_addition(0, {.collective = 9}), "unknown operation: 9"},
          {"DType", craft_addition(0, {.dtype = kDTypeCount}), "unknown dtype: 12"},
          {"Reduction", craft_addition(0, {.op = 10}), "unknown reduction: 10"},
          {"CompressionScope", craft_addition(0, {.compression_scope = 2}),
           "unknown compression scope: 2"},
          {"JoinDivisor", craft_addition(0, {.join_divisor = 2}), "unknown join divisor: 2"},
          {"Device", craft_addition(0, {.device = 2}), "unknown device: 2"},
          {"BitTooHigh", craft_addition(Header::kMaxBits, {}), "bit 8192, expected 0 to 8191"},
          {"NegativeBit", craft_addition(-1, {}), "bit -1"},
          {"NeitherRequestNorBit", craft_report(-1, {0}), "bit -1"},
          {"NoRank", craft_report(0, {}), "no rank"},
          {"NegativeRank", craft_report(0, {-2}), "rank -2, expected at least 0"},
          {"DescendingRanks", craft_report(0, {4, 3}), "rank 3, expected at least 5"},
          {"RepeatedRank", craft_report(0, {4, 4}), "rank 4, expected at least 5"},
          {"RepeatedLargestRank", craft_addition(0, {.members = {kLargestRank, kLargestRank}}),
           "rank 2147483647, expected at least 2147483648"},
          {"NamesInOnePlace", craft_waiting(100, 100), "its parts overlap"},
          {"ItemsInOnePlace", craft_items(1000), "is damaged"},
          {"TooManyBits", craft_header(129, -1), "129 words of bits, expected at most 128"},
          {"RankBelowNone", craft_header(1, -2), "rank -2, expected at least -1"}};
}

INSTANTIATE_TEST_SUITE_P(Cases, WireRejectionTest, testing::ValuesIn(rejections()),
                         [](const auto& instance) { return instance.param.name; });

// The bits of requests end at Header::kMaxBits; ranks do not.
TEST(WireDecodeTest, JoinedRanksBeyondTheBitsOfRequests_AreDecoded) {
  Header header;
  for (const int rank : {3, Header::kMaxBits, 9999}) header.joined.set(rank);
  const WireMessage message{HeaderExchangeMessage{HeaderUp{header}}};
  EXPECT_EQ(decode(encode(message), 10000), message);
}

TEST(WireDecodeTest, RanksOutsideTheSet_AreRejected) {
  Header joined;
  for (const int rank : {0, 3}) joined.joined.set(rank);
  Header leaving;
  leaving.shutdown_rank = 3;
  Header newest;
  newest.newest = {1, 3};
  Verdict stall;
  stall.stalls = {{"a", {0}, {1, 3}}};
  const std::vector<WireMessage> messages{
      ControlMessage{Report{7, {{{}, 0, {1, 3}, {}, false}}, {}}},
      ControlMessage{Report{7, {{{}, 0, {1}, {3}, false}}, {}}},
      ControlMessage{Report{7, {}, {0, 3}}},
      ControlMessage{Report{7, {}, {}, {{3, "busy"}}}},
      ControlMessage{stall},
      HeaderExchangeMessage{HeaderUp{joined}},
      HeaderExchangeMessage{HeaderDown{leaving}},
      HeaderExchangeMessage{HeaderUp{newest}},
      HeaderExchangeMessage{LostRank{3, "died"}}};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<std::byte> bytes = encode(messages[i]);
    EXPECT_EQ(decode(bytes, 4), messages[i]);
    test::expect_contains(test::text_thrown_by<BackendError>([&] { decode(bytes, 3); }),
                          "rank 3 of a process set of 3");
  }
}

TEST(WireDecodeTest, CraftedMessageInRange_IsAccepted) {
  EXPECT_EQ(rejection_of(craft_addition(
                Header::kMaxBits - 1,
                {.collective = 8, .dtype = 9, .op = 6, .device = 1, .join_divisor = 1})),
            "");
  EXPECT_EQ(rejection_of(craft_report(0, {3, 4})), "");
  EXPECT_EQ(rejection_of(craft_header(128, -1)), "");
  EXPECT_EQ(rejection_of(craft_waiting(1, 5000)), "");
  EXPECT_EQ(rejection_of(craft_items(1)), "");
}

}  // namespace kolo::runtime::wire_test
