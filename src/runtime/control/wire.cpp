#include "runtime/control/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kolo/error.hpp"
#include "runtime/control/wire_generated.h"

namespace kolo::runtime {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr int kNobody = -1;

// FlatBuffers packs a table after everything it refers to.

Offset<flatbuffers::Vector<std::uint64_t>> pack(FlatBufferBuilder& builder, const Bits& bits) {
  std::uint64_t* words = nullptr;
  const auto packed = builder.CreateUninitializedVector(bits.word_count(), &words);
  for (std::size_t i = 0; i < bits.word_count(); ++i) {
    words[i] = flatbuffers::EndianScalar(bits.word(i));
  }
  return packed;
}

Offset<wire::Header> pack(FlatBufferBuilder& builder, const Header& header) {
  const auto joined = pack(builder, header.joined);
  const auto own = pack(builder, header.own);
  const auto ready = pack(builder, header.ready);
  return wire::CreateHeader(builder, header.exchange, header.has_unknown, header.has_expired,
                            header.has_stalled, header.shutdown_rank.value_or(kNobody), joined, own,
                            ready, header.thrower_rank.value_or(kNobody), header.newest.at,
                            header.newest.rank);
}

Offset<wire::TensorType> pack(FlatBufferBuilder& builder, const TensorType& tensor) {
  const auto shape = builder.CreateVector(tensor.shape);
  return wire::CreateTensorType(builder, static_cast<std::uint8_t>(tensor.dtype), shape);
}

Offset<wire::Request> pack(FlatBufferBuilder& builder, const Request& request) {
  const auto name = builder.CreateString(request.name);
  std::vector<Offset<wire::TensorType>> types;
  for (const TensorType& type : request.tensors) types.push_back(pack(builder, type));
  const auto tensors = builder.CreateVector(types);
  const auto custom = builder.CreateString(request.custom);
  const auto compression = builder.CreateString(request.compression);
  const auto placement = builder.CreateString(request.placement);
  const auto rows = builder.CreateVector(request.rows);
  const auto members = builder.CreateVector(request.members);
  const auto purpose = builder.CreateString(request.purpose);
  const auto invalid_reason = builder.CreateString(request.invalid_reason);
  return wire::CreateRequest(builder, name, static_cast<std::uint8_t>(request.collective), tensors,
                             static_cast<std::uint8_t>(request.op), custom, request.prescale,
                             request.postscale, static_cast<std::uint8_t>(request.join_divisor),
                             request.root, static_cast<std::uint8_t>(request.device), compression,
                             static_cast<std::uint8_t>(request.compression_scope), placement, rows,
                             members, request.set_number, request.fusible, purpose, invalid_reason);
}

Offset<wire::Item> pack(FlatBufferBuilder& builder, const Report::Item& item) {
  Offset<wire::Request> request;
  if (item.request) request = pack(builder, *item.request);
  const auto ranks = builder.CreateVector(item.ranks);
  const auto expired_ranks = builder.CreateVector(item.expired_ranks);
  return wire::CreateItem(builder, request, item.bit, ranks, expired_ranks, item.stalled);
}

Offset<wire::Addition> pack(FlatBufferBuilder& builder, const Verdict::Addition& addition) {
  return wire::CreateAddition(builder, addition.bit, pack(builder, *addition.request));
}

Offset<wire::NameError> pack(FlatBufferBuilder& builder, const Verdict::NameError& error) {
  const auto name = builder.CreateString(error.name);
  const auto text = builder.CreateString(error.failure.text);
  return wire::CreateNameError(builder, name, static_cast<std::uint8_t>(error.failure.kind), text);
}

Offset<wire::Stall> pack(FlatBufferBuilder& builder, const Verdict::Stall& stall) {
  const auto name = builder.CreateString(stall.name);
  const auto waiting_ranks = builder.CreateVector(stall.waiting_ranks);
  const auto missing_ranks = builder.CreateVector(stall.missing_ranks);
  const auto activities = builder.CreateString(stall.activities);
  return wire::CreateStall(builder, name, waiting_ranks, missing_ranks, activities);
}

Offset<wire::Activity> pack(FlatBufferBuilder& builder, const Report::Activity& activity) {
  return wire::CreateActivity(builder, activity.rank, builder.CreateString(activity.text));
}

template <class T>
auto pack_all(FlatBufferBuilder& builder, const std::vector<T>& items) {
  std::vector<decltype(pack(builder, items[0]))> packed;
  packed.reserve(items.size());
  for (const T& item : items) packed.push_back(pack(builder, item));
  return builder.CreateVector(packed);
}

// A message of any kind becomes the body of an envelope.

struct Body {
  wire::Body kind;
  Offset<void> offset;
};

Body pack_body(FlatBufferBuilder& builder, const Report& report) {
  const auto items = pack_all(builder, report.items);
  const auto joined_ranks = builder.CreateVector(report.joined_ranks);
  const auto activities = pack_all(builder, report.activities);
  const auto packed = wire::CreateReport(builder, report.exchange, items, joined_ranks, activities);
  return {wire::Body::Report, packed.Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Verdict& verdict) {
  const auto evicted = builder.CreateVector(verdict.evicted);
  const auto added = pack_all(builder, verdict.added);
  const auto errors = pack_all(builder, verdict.errors);
  const auto stalls = pack_all(builder, verdict.stalls);
  const auto blocked = builder.CreateVectorOfStrings(verdict.blocked);
  const auto packed =
      wire::CreateVerdict(builder, verdict.exchange, evicted, added, errors, stalls, blocked);
  return {wire::Body::Verdict, packed.Union()};
}

Body pack_body(FlatBufferBuilder& builder, const HeaderUp& up) {
  return {wire::Body::HeaderUp, pack(builder, up.header).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const HeaderDown& down) {
  return {wire::Body::HeaderDown, pack(builder, down.header).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const WakeUpRequest& request) {
  return {wire::Body::WakeUpRequest, wire::CreateWakeUpRequest(builder, request.exchange).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const LostRank& lost) {
  const auto how = builder.CreateString(lost.how);
  return {wire::Body::Lost,
          wire::CreateLost(builder, lost.rank, how, static_cast<std::uint8_t>(lost.kind)).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Left&) {
  return {wire::Body::Left, wire::CreateEmpty(builder).Union()};
}
Body pack_body(FlatBufferBuilder& builder, const Ping&) {
  return {wire::Body::Ping, wire::CreateEmpty(builder).Union()};
}
Body pack_body(FlatBufferBuilder& builder, const Heartbeat&) {
  return {wire::Body::Heartbeat, wire::CreateEmpty(builder).Union()};
}

template <class... Kinds>
Body pack_body(FlatBufferBuilder& builder, const std::variant<Kinds...>& message) {
  return std::visit([&](const auto& content) { return pack_body(builder, content); }, message);
}

}  // namespace

std::vector<std::byte> encode(const WireMessage& message, std::vector<std::byte> buffer) {
  FlatBufferBuilder builder(256);
  const Body body = pack_body(builder, message);
  builder.Finish(wire::CreateEnvelope(builder, kWireVersion, body.kind, body.offset),
                 wire::EnvelopeIdentifier());
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  buffer.assign(begin, begin + builder.GetSize());
  return buffer;
}

namespace {

using flatbuffers::Offset;

constexpr std::int64_t kAnyRank = std::int64_t{1} << 31;
constexpr flatbuffers::uoffset_t kMaxTableDepth = 8;
constexpr std::size_t kSmallestTable = 4;  // bytes

[[noreturn]] void reject(const std::string& what) {
  throw BackendError("control message " + what + ". All ranks must run the same build of Kolo.");
}

template <class Enum>
Enum unpack_enum(std::uint8_t value, Enum last, const char* field) {
  if (value > static_cast<std::uint8_t>(last)) {
    reject("with an unknown " + std::string(field) + ": " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}

int unpack_bit(int bit) {
  if (bit < 0 || bit >= Header::kMaxBits) {
    reject("with bit " + std::to_string(bit) + ", expected 0 to " +
           std::to_string(Header::kMaxBits - 1));
  }
  return bit;
}

int unpack_rank(int rank, std::int64_t lowest, std::int64_t limit) {
  if (rank < lowest) {
    reject("with rank " + std::to_string(rank) + ", expected at least " + std::to_string(lowest));
  }
  if (rank >= limit) {
    reject("with rank " + std::to_string(rank) + " of a process set of " + std::to_string(limit));
  }
  return rank;
}

/// Unpacks a message whose structure has been verified. The verifier accepts parts that overlap, so
/// a small damaged message could stand for gigabytes. Therefore everything that is copied out of
/// the message must fit into its size.
class Unpacker {
 public:
  Unpacker(std::size_t message_bytes, int size) : bytes_left_(message_bytes), size_(size) {}

  WireMessage unpack(const wire::Envelope& envelope) {
    switch (envelope.body_type()) {
      case wire::Body::Report: return ControlMessage{unpack(*envelope.body_as_Report())};
      case wire::Body::Verdict: return ControlMessage{unpack(*envelope.body_as_Verdict())};
      case wire::Body::HeaderUp:
        return HeaderExchangeMessage{HeaderUp{unpack(*envelope.body_as_HeaderUp())}};
      case wire::Body::HeaderDown:
        return HeaderExchangeMessage{HeaderDown{unpack(*envelope.body_as_HeaderDown())}};
      case wire::Body::WakeUpRequest:
        return HeaderExchangeMessage{WakeUpRequest{envelope.body_as_WakeUpRequest()->exchange()}};
      case wire::Body::Lost: {
        const wire::Lost& lost = *envelope.body_as_Lost();
        return HeaderExchangeMessage{
            LostRank{unpack_rank(lost.rank(), 0, size_), text(*lost.how()),
                     unpack_enum(lost.kind(), ErrorKind::Backend, "kind of error")}};
      }
      case wire::Body::Left: return HeaderExchangeMessage{Left{}};
      case wire::Body::Ping: return HeaderExchangeMessage{Ping{}};
      case wire::Body::Heartbeat: return HeaderExchangeMessage{Heartbeat{}};
      case wire::Body::NONE: break;
    }
    reject("of unknown kind " + std::to_string(static_cast<int>(envelope.body_type())));
  }

 private:
  void take(std::size_t bytes) {
    if (bytes > bytes_left_) reject("that is damaged: its parts overlap");
    bytes_left_ -= bytes;
  }

  std::string text(const flatbuffers::String& packed) {
    take(packed.size());
    return packed.str();
  }

  /// Checks the alignment, which the verifier does not do for 64-bit numbers.
  template <class Number>
  std::vector<Number> numbers(const flatbuffers::Vector<Number>& packed) {
    take(packed.size() * sizeof(Number));
    if (packed.size() > 0 &&
        reinterpret_cast<std::uintptr_t>(packed.Data()) % alignof(Number) != 0) {
      reject("that is damaged: its numbers are not aligned");
    }
    return {packed.begin(), packed.end()};
  }

  std::vector<int> ranks(const flatbuffers::Vector<std::int32_t>& packed, std::int64_t limit) {
    std::vector<int> ranks = numbers(packed);
    std::int64_t lowest = 0;
    for (const int rank : ranks) lowest = std::int64_t{unpack_rank(rank, lowest, limit)} + 1;
    return ranks;
  }
  std::vector<int> ranks(const flatbuffers::Vector<std::int32_t>& packed) {
    return ranks(packed, size_);
  }

  Bits bits(const flatbuffers::Vector<std::uint64_t>& packed) {
    if (packed.size() > Header::kMaxBits / 64) {
      reject("with " + std::to_string(packed.size()) + " words of bits, expected at most " +
             std::to_string(Header::kMaxBits / 64));
    }
    return words(packed);
  }

  Bits words(const flatbuffers::Vector<std::uint64_t>& packed) {
    Bits bits;
    std::size_t i = 0;
    for (const std::uint64_t word : numbers(packed)) bits.set_word(i++, word);
    return bits;
  }

  std::optional<int> optional_rank(std::int32_t packed) {
    const int rank = unpack_rank(packed, -1, size_);
    return rank < 0 ? std::nullopt : std::optional(rank);
  }

  Bits joined(const flatbuffers::Vector<std::uint64_t>& packed) {
    Bits ranks = words(packed);  // there may be more ranks than a table has bits
    ranks.for_each([&](int rank) { unpack_rank(rank, 0, size_); });
    return ranks;
  }

  template <class T, class Packed>
  std::vector<T> all(const flatbuffers::Vector<Offset<Packed>>& packed) {
    take(packed.size() * sizeof(Offset<Packed>));
    std::vector<T> items;
    items.reserve(packed.size());
    for (const Packed* item : packed) items.push_back(unpack(*item));
    return items;
  }

  Header unpack(const wire::Header& packed) {
    return {packed.exchange(),
            packed.has_unknown(),
            packed.has_expired(),
            packed.has_stalled(),
            optional_rank(packed.shutdown_rank()),
            optional_rank(packed.thrower_rank()),
            joined(*packed.joined()),
            bits(*packed.own()),
            bits(*packed.ready()),
            {packed.newest(), unpack_rank(packed.newest_rank(), -1, size_)}};
  }

  TensorType unpack(const wire::TensorType& packed) {
    return {unpack_enum(packed.dtype(), static_cast<DType>(kDTypeCount - 1), "dtype"),
            numbers(*packed.shape())};
  }

  Request unpack(const wire::Request& packed) {
    return {text(*packed.name()),
            unpack_enum(packed.collective(), Collective::RemoveProcessSet, "operation"),
            all<TensorType>(*packed.tensors()),
            unpack_enum(packed.op(), ReduceOp::BitXor, "reduction"),
            text(*packed.custom()),
            packed.prescale(),
            packed.postscale(),
            unpack_enum(packed.join_divisor(), JoinDivisor::Active, "join divisor"),
            packed.root(),
            unpack_enum(packed.device(), DeviceKind::Cuda, "device"),
            text(*packed.compression()),
            unpack_enum(packed.compression_scope(), CompressionScope::BetweenNodes,
                        "compression scope"),
            text(*packed.placement()),
            numbers(*packed.rows()),
            ranks(*packed.members(), kAnyRank),
            packed.set_number(),
            packed.fusible(),
            text(*packed.purpose()),
            text(*packed.invalid_reason())};
  }

  Report::Item unpack(const wire::Item& packed) {
    Report::Item item;
    if (packed.request() != nullptr) {
      item.request = unpack(*packed.request());
    } else {
      item.bit = unpack_bit(packed.bit());
    }
    item.ranks = ranks(*packed.ranks());
    if (item.ranks.empty()) reject("that reports a request of no rank");
    item.expired_ranks = ranks(*packed.expired_ranks());
    item.stalled = packed.stalled();
    return item;
  }

  Verdict::Addition unpack(const wire::Addition& packed) {
    return {unpack_bit(packed.bit()), unpack(*packed.request())};
  }

  Verdict::NameError unpack(const wire::NameError& packed) {
    return {
        text(*packed.name()),
        {unpack_enum(packed.kind(), ErrorKind::Backend, "kind of error"), text(*packed.text())}};
  }

  Verdict::Stall unpack(const wire::Stall& packed) {
    return {text(*packed.name()), ranks(*packed.waiting_ranks()), ranks(*packed.missing_ranks()),
            text(*packed.activities())};
  }

  Report::Activity unpack(const wire::Activity& packed) {
    return {unpack_rank(packed.rank(), 0, size_), text(*packed.text())};
  }

  std::string unpack(const flatbuffers::String& packed) { return text(packed); }

  Report unpack(const wire::Report& packed) {
    return {packed.exchange(), all<Report::Item>(*packed.items()), ranks(*packed.joined_ranks()),
            all<Report::Activity>(*packed.activities())};
  }

  Verdict unpack(const wire::Verdict& packed) {
    Verdict verdict;
    verdict.exchange = packed.exchange();
    for (const int bit : numbers(*packed.evicted())) verdict.evicted.push_back(unpack_bit(bit));
    verdict.added = all<Verdict::Addition>(*packed.added());
    verdict.errors = all<Verdict::NameError>(*packed.errors());
    verdict.stalls = all<Verdict::Stall>(*packed.stalls());
    verdict.blocked = all<std::string>(*packed.blocked());
    return verdict;
  }

  std::size_t bytes_left_;
  const int size_;  // of the process set
};

}  // namespace

WireMessage decode(const std::vector<std::byte>& bytes, int size_of_set) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::string size = "of " + std::to_string(bytes.size()) + " bytes";
  flatbuffers::Verifier preamble_verifier(data, bytes.size());
  if (!preamble_verifier.VerifyBuffer<wire::Preamble>(wire::EnvelopeIdentifier())) {
    reject(size + " is damaged, or none of Kolo's");
  }
  const std::uint32_t version = flatbuffers::GetRoot<wire::Preamble>(data)->version();
  if (version != kWireVersion) {
    reject(size + " has version " + std::to_string(version) + " of the format, this rank speaks " +
           "version " + std::to_string(kWireVersion));
  }
  const auto max_tables = static_cast<flatbuffers::uoffset_t>(bytes.size() / kSmallestTable);
  flatbuffers::Verifier verifier(data, bytes.size(), kMaxTableDepth, max_tables);
  if (!wire::VerifyEnvelopeBuffer(verifier)) reject(size + " is damaged");
  return Unpacker(bytes.size(), size_of_set).unpack(*wire::GetEnvelope(data));
}

}  // namespace kolo::runtime
