#include "runtime/control/wire.hpp"

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
                            ready, header.thrower_rank.value_or(kNobody));
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

}  // namespace kolo::runtime
