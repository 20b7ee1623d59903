// Feeds bytes to the decoder of control messages. Beyond "no crash":
//   - a rejected message throws BackendError;
//   - a message is no larger than a multiple of its bytes, though tables may share others;
//   - an accepted message encodes to a message of the same value.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/fuzz_target.hpp"
#include "kolo/error.hpp"
#include "runtime/control/wire.hpp"

namespace kolo::fuzz {
namespace {

using runtime::ControlMessage;
using runtime::Header;
using runtime::HeaderDown;
using runtime::HeaderExchangeMessage;
using runtime::HeaderUp;
using runtime::Heartbeat;
using runtime::Left;
using runtime::LostRank;
using runtime::Ping;
using runtime::Report;
using runtime::Request;
using runtime::Verdict;
using runtime::WakeUpRequest;
using runtime::WireMessage;

constexpr int kRanks = 10;
constexpr std::size_t kLargestGrowth = 256;  // for a list of small tables that become large structs
constexpr std::size_t kErrorText = 4096;

Request some_request() {
  return {"layer.weight",
          Collective::AllReduce,
          {{DType::Float32, {3, 4}}, {DType::Bool, {}}},
          ReduceOp::Custom,
          "xor",
          0.5,
          std::numeric_limits<double>::infinity(),
          JoinDivisor::Active,
          1,
          DeviceKind::Cuda,
          "fp16",
          CompressionScope::BetweenNodes,
          "window 3 + 4096",
          {1, 0, 4},
          {0, 2, 9},
          3,
          false,
          "gathering unit 3",
          "the splits add up to 5 rows"};
}

Header some_header() {
  Header header;
  header.exchange = 41;
  header.has_unknown = header.has_stalled = true;
  header.shutdown_rank = 2;
  header.joined.set(1);
  for (int bit = 0; bit < 200; bit += 7) header.own.set(bit);
  header.ready.set(63);
  return header;
}

std::vector<WireMessage> some_messages() {
  const Report report{
      7, {{some_request(), -1, {0, 1}, {1}, true}, {{}, 5, {3}, {}, false}}, {0, 2}};
  Verdict verdict;
  verdict.exchange = 9;
  verdict.evicted = {5, 8191};
  verdict.added = {{63, some_request()}};
  verdict.errors = {{"a", {ErrorKind::Mismatch, "'a': shape differs"}}};
  verdict.stalls = {{"b", {0, 1}, {2}}};
  verdict.blocked = {"one", ""};
  return {ControlMessage{report},
          ControlMessage{verdict},
          HeaderExchangeMessage{HeaderUp{some_header()}},
          HeaderExchangeMessage{HeaderDown{some_header()}},
          HeaderExchangeMessage{WakeUpRequest{5}},
          HeaderExchangeMessage{LostRank{3, "died: its process has ended"}},
          HeaderExchangeMessage{Left{}},
          HeaderExchangeMessage{Ping{}},
          HeaderExchangeMessage{Heartbeat{}}};
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const WireMessage& message : some_messages()) {
    const std::vector<std::byte> bytes = runtime::encode(message);
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kolo;
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  runtime::WireMessage message;
  try {
    const fuzz::AllocationBudget budget(size * fuzz::kLargestGrowth + fuzz::kErrorText);
    message = runtime::decode(bytes, fuzz::kRanks);
  } catch (const BackendError&) {
    return 0;
  }
  // Compares bytes, as a factor may be NaN.
  const std::vector<std::byte> again = runtime::encode(message);
  fuzz::require(runtime::encode(runtime::decode(again, fuzz::kRanks)) == again,
                "decode(encode(x)) is x");
  return 0;
}
