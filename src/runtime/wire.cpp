#include "runtime/wire.hpp"

#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "runtime/wire_generated.h"

namespace kolo::runtime {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

// --- encoding: a table is packed after all that it refers to ---

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
                            header.has_stalled, header.shutdown_rank, joined, own, ready);
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
  const auto defect = builder.CreateString(request.defect);
  return wire::CreateRequest(builder, name, static_cast<std::uint8_t>(request.collective), tensors,
                             static_cast<std::uint8_t>(request.op), custom, request.prescale,
                             request.postscale, static_cast<std::uint8_t>(request.join_divisor),
                             request.root, static_cast<std::uint8_t>(request.device), compression,
                             placement, rows, members, request.set_number, request.fusible, defect);
}

Offset<wire::Item> pack(FlatBufferBuilder& builder, const Report::Item& item) {
  Offset<wire::Request> request;
  if (item.request) request = pack(builder, *item.request);
  const auto ranks = builder.CreateVector(item.ranks);
  const auto expired_ranks = builder.CreateVector(item.expired_ranks);
  return wire::CreateItem(builder, request, item.bit, ranks, expired_ranks, item.stalled);
}

Offset<wire::Addition> pack(FlatBufferBuilder& builder, const Verdict::Addition& addition) {
  return wire::CreateAddition(builder, addition.bit, pack(builder, addition.request));
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
  return wire::CreateStall(builder, name, waiting_ranks, missing_ranks);
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
  const auto packed = wire::CreateReport(builder, report.exchange, items, joined_ranks);
  return {wire::Body::Report, packed.Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Verdict& verdict) {
  const auto evicted = builder.CreateVector(verdict.evicted);
  const auto added = pack_all(builder, verdict.added);
  const auto errors = pack_all(builder, verdict.errors);
  const auto stalls = pack_all(builder, verdict.stalls);
  const auto waiting = builder.CreateVectorOfStrings(verdict.waiting);
  const auto packed =
      wire::CreateVerdict(builder, verdict.exchange, evicted, added, errors, stalls, waiting);
  return {wire::Body::Verdict, packed.Union()};
}

Body pack_body(FlatBufferBuilder& builder, const HeaderUp& up) {
  return {wire::Body::HeaderUp, pack(builder, up.header).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const HeaderDown& down) {
  return {wire::Body::HeaderDown, pack(builder, down.header).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Ask& ask) {
  return {wire::Body::Ask, wire::CreateAsk(builder, ask.exchange).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Lost& lost) {
  const auto how = builder.CreateString(lost.loss.how);
  return {wire::Body::Lost, wire::CreateLost(builder, lost.loss.rank, how).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Left&) {
  return {wire::Body::Left, wire::CreateEmpty(builder).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Ping&) {
  return {wire::Body::Ping, wire::CreateEmpty(builder).Union()};
}

Body pack_body(FlatBufferBuilder& builder, const Pong&) {
  return {wire::Body::Pong, wire::CreateEmpty(builder).Union()};
}

template <class... Kinds>
Body pack_body(FlatBufferBuilder& builder, const std::variant<Kinds...>& message) {
  return std::visit([&](const auto& content) { return pack_body(builder, content); }, message);
}

// --- decoding: nothing is taken from a buffer whose structure is not verified ---

[[noreturn]] void reject(const std::string& what) {
  throw BackendError("control message " + what + ". All ranks must run the same build of Kolo.");
}

/// A vector of 64-bit numbers; the verifier lets those of a damaged message lie where they may not
/// be read.
template <class Number>
const flatbuffers::Vector<Number>& aligned(const flatbuffers::Vector<Number>& packed) {
  if (packed.size() > 0 && reinterpret_cast<std::uintptr_t>(packed.Data()) % alignof(Number) != 0) {
    reject("that is damaged: its numbers are not aligned");
  }
  return packed;
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

int unpack_rank(int rank, int lowest) {
  if (rank < lowest) {
    reject("with rank " + std::to_string(rank) + ", expected at least " + std::to_string(lowest));
  }
  return rank;
}

std::vector<int> unpack_ranks(const flatbuffers::Vector<std::int32_t>& packed) {
  std::vector<int> ranks;
  ranks.reserve(packed.size());
  for (const int rank : packed) {
    ranks.push_back(unpack_rank(rank, ranks.empty() ? 0 : ranks.back() + 1));
  }
  return ranks;
}

Bits unpack(const flatbuffers::Vector<std::uint64_t>& packed) {
  if (packed.size() > Header::kMaxBits / 64) {
    reject("with " + std::to_string(packed.size()) + " words of bits, expected at most " +
           std::to_string(Header::kMaxBits / 64));
  }
  Bits bits;
  for (flatbuffers::uoffset_t i = 0; i < packed.size(); ++i) bits.set_word(i, packed.Get(i));
  return bits;
}

Header unpack(const wire::Header& packed) {
  return {packed.exchange(),
          packed.has_unknown(),
          packed.has_expired(),
          packed.has_stalled(),
          unpack_rank(packed.shutdown_rank(), Header::kNoRank),
          unpack(aligned(*packed.joined())),
          unpack(aligned(*packed.own())),
          unpack(aligned(*packed.ready()))};
}

TensorType unpack(const wire::TensorType& packed) {
  const auto& shape = aligned(*packed.shape());
  return {unpack_enum(packed.dtype(), static_cast<DType>(kDTypeCount - 1), "dtype"),
          {shape.begin(), shape.end()}};
}

Request unpack(const wire::Request& packed) {
  const auto& rows = aligned(*packed.rows());
  std::vector<TensorType> tensors;
  for (const wire::TensorType* type : *packed.tensors()) tensors.push_back(unpack(*type));
  return {packed.name()->str(),
          unpack_enum(packed.collective(), Collective::RemoveProcessSet, "operation"),
          std::move(tensors),
          unpack_enum(packed.op(), ReduceOp::Custom, "reduction"),
          packed.custom()->str(),
          packed.prescale(),
          packed.postscale(),
          unpack_enum(packed.join_divisor(), JoinDivisor::Active, "join divisor"),
          packed.root(),
          unpack_enum(packed.device(), DeviceKind::Cuda, "device"),
          packed.compression()->str(),
          packed.placement()->str(),
          {rows.begin(), rows.end()},
          unpack_ranks(*packed.members()),
          packed.set_number(),
          packed.fusible(),
          packed.defect()->str()};
}

Report::Item unpack(const wire::Item& packed) {
  Report::Item item;
  if (packed.request() != nullptr) {
    item.request = unpack(*packed.request());
  } else {
    item.bit = unpack_bit(packed.bit());
  }
  item.ranks = unpack_ranks(*packed.ranks());
  if (item.ranks.empty()) reject("that reports a request of no rank");
  item.expired_ranks = unpack_ranks(*packed.expired_ranks());
  item.stalled = packed.stalled();
  return item;
}

Verdict::Addition unpack(const wire::Addition& packed) {
  return {unpack_bit(packed.bit()), unpack(*packed.request())};
}

Verdict::NameError unpack(const wire::NameError& packed) {
  return {packed.name()->str(),
          {unpack_enum(packed.kind(), ErrorKind::Backend, "kind of error"), packed.text()->str()}};
}

Verdict::Stall unpack(const wire::Stall& packed) {
  return {packed.name()->str(), unpack_ranks(*packed.waiting_ranks()),
          unpack_ranks(*packed.missing_ranks())};
}

template <class T, class Packed>
std::vector<T> unpack_all(const flatbuffers::Vector<Offset<Packed>>& packed) {
  std::vector<T> items;
  items.reserve(packed.size());
  for (const Packed* item : packed) items.push_back(unpack(*item));
  return items;
}

Report unpack(const wire::Report& packed) {
  return {packed.exchange(), unpack_all<Report::Item>(*packed.items()),
          unpack_ranks(*packed.joined_ranks())};
}

Verdict unpack(const wire::Verdict& packed) {
  Verdict verdict;
  verdict.exchange = packed.exchange();
  for (const int bit : *packed.evicted()) verdict.evicted.push_back(unpack_bit(bit));
  verdict.added = unpack_all<Verdict::Addition>(*packed.added());
  verdict.errors = unpack_all<Verdict::NameError>(*packed.errors());
  verdict.stalls = unpack_all<Verdict::Stall>(*packed.stalls());
  for (const auto* name : *packed.waiting()) verdict.waiting.push_back(name->str());
  return verdict;
}

WireMessage unpack(const wire::Envelope& envelope) {
  switch (envelope.body_type()) {
    case wire::Body::Report: return ControlMessage{unpack(*envelope.body_as_Report())};
    case wire::Body::Verdict: return ControlMessage{unpack(*envelope.body_as_Verdict())};
    case wire::Body::HeaderUp: return BoardMessage{HeaderUp{unpack(*envelope.body_as_HeaderUp())}};
    case wire::Body::HeaderDown:
      return BoardMessage{HeaderDown{unpack(*envelope.body_as_HeaderDown())}};
    case wire::Body::Ask: return BoardMessage{Ask{envelope.body_as_Ask()->exchange()}};
    case wire::Body::Lost: {
      const wire::Lost& lost = *envelope.body_as_Lost();
      return BoardMessage{Lost{{unpack_rank(lost.rank(), 0), lost.how()->str()}}};
    }
    case wire::Body::Left: return BoardMessage{Left{}};
    case wire::Body::Ping: return BoardMessage{Ping{}};
    case wire::Body::Pong: return BoardMessage{Pong{}};
    case wire::Body::NONE: break;
  }
  reject("of unknown kind " + std::to_string(static_cast<int>(envelope.body_type())));
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

WireMessage decode(const std::vector<std::byte>& bytes) {
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
  flatbuffers::Verifier verifier(data, bytes.size());
  if (!wire::VerifyEnvelopeBuffer(verifier)) reject(size + " is damaged");
  return unpack(*wire::GetEnvelope(data));
}

}  // namespace kolo::runtime
