#include "ops/steps/coded_pieces.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/convert.hpp"
#include "ops/steps/contributions.hpp"

namespace kolo::ops {
namespace {

/// Calls `visit(begin, length, payload)` for each block of `count` elements.
template <class Payload, class Visit>
void for_each_block(const Codec& codec, std::size_t count, int terms, Payload* payload,
                    const Visit& visit) {
  for (std::size_t begin = 0; begin < count; begin += codec.block()) {
    const std::size_t length = std::min(codec.block(), count - begin);
    visit(begin, length, payload);
    payload += codec.payload_bytes(length, terms);
  }
}

void read(const CollectiveCall& call, Range range, float* values) {
  base::convert(call.dtype, bytes_of(call, call.input, range).data(), DType::Float32, values,
                range.length);
}

bool are_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

void add_blocks(const Codec& codec, const std::byte* payload, int terms, std::span<float> values) {
  for_each_block(codec, values.size(), terms, payload,
                 [&](std::size_t begin, std::size_t length, const std::byte* from) {
                   codec.add_decoded(from, terms, values.subspan(begin, length));
                 });
}

}  // namespace

std::size_t coded_segment_length(const CollectiveCall& call) {
  const std::size_t block = call.codec->block();
  return std::max(block, call.segment_bytes / sizeof(float) / block * block);
}

CodedContributions::CodedContributions(const CollectiveCall& call, std::vector<Range> pieces,
                                       int tag)
    : call_(call),
      communicator_(*call.communicator),
      rank_(communicator_.rank()),
      size_(communicator_.size()),
      tag_(tag),
      pieces_(std::move(pieces)),
      segment_(coded_segment_length(call)),
      slot_bytes_(coded_bytes(*call.codec, std::min(segment_, longest_of(pieces_)), 1)),
      slots_(4 * static_cast<std::size_t>(size_) * slot_bytes_),
      sum_(std::min(segment_, longest_of(pieces_))),
      block_(std::min(call.codec->block(), sum_.size())) {}

void CodedContributions::start(std::size_t segment) {
  std::vector<Transfer>& transfers = transfers_[segment % 2];
  const Codec& codec = *call_.codec;
  const Range own = range(rank_, segment);
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;  // so that not all send to rank 0 first
    if (own.length > 0) {
      const std::size_t bytes = coded_bytes(codec, own.length, 1);
      transfers.push_back(communicator_.receive({received(peer, segment), bytes}, peer, tag_));
    }
    const Range theirs = range(peer, segment);
    if (theirs.length == 0) continue;
    const std::span<float> part = std::span(sum_).first(theirs.length);
    read(call_, theirs, part.data());
    encode_with_residual(codec, part,
                         call_.residual != nullptr ? call_.residual + theirs.begin : nullptr, 1,
                         sent(peer, segment), block_);
    const std::size_t bytes = coded_bytes(codec, theirs.length, 1);
    transfers.push_back(communicator_.send({sent(peer, segment), bytes}, peer, tag_));
  }
}

Task CodedContributions::finish(std::size_t segment) {
  std::vector<Transfer>& transfers = transfers_[segment % 2];
  for (Transfer& transfer : transfers) co_await transfer;
  transfers.clear();
}

std::span<float> CodedContributions::sum(std::size_t segment) {
  const Range own = range(rank_, segment);
  const std::span<float> sum = std::span(sum_).first(own.length);
  std::ranges::fill(sum, 0.0f);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) {
      add_blocks(*call_.codec, received(peer, segment), 1, sum);
      continue;
    }
    for (std::size_t begin = 0; begin < own.length; begin += block_.size()) {
      const std::size_t length = std::min(block_.size(), own.length - begin);
      read(call_, {own.begin + begin, length}, block_.data());
      for (std::size_t i = 0; i < length; ++i) sum[begin + i] += block_[i];
    }
  }
  return sum;
}

std::byte* CodedContributions::sent(int rank, std::size_t segment) {
  const std::size_t index = segment % 2 * static_cast<std::size_t>(size_);
  return slots_.data() + (index + static_cast<std::size_t>(rank)) * slot_bytes_;
}

std::byte* CodedContributions::received(int rank, std::size_t segment) {
  return sent(rank, segment) + 2 * static_cast<std::size_t>(size_) * slot_bytes_;
}

void encode_with_residual(const Codec& codec, std::span<float> values, float* residual, int terms,
                          std::byte* payload, std::span<float> block) {
  for_each_block(codec, values.size(), terms, payload,
                 [&](std::size_t begin, std::size_t length, std::byte* to) {
                   const std::span<float> part = values.subspan(begin, length);
                   if (residual == nullptr) return codec.encode(part, terms, to);
                   for (std::size_t i = 0; i < length; ++i) part[i] += residual[begin + i];
                   codec.encode(part, terms, to);
                   const std::span<float> decoded = block.first(length);
                   std::ranges::fill(decoded, 0.0f);
                   codec.add_decoded(to, terms, decoded);
                   // A step with NaN or infinity is skipped, so it has no encoding error.
                   if (!are_finite(decoded)) return;
                   for (std::size_t i = 0; i < length; ++i) {
                     residual[begin + i] = part[i] - decoded[i];
                   }
                 });
}

void write_decoded(const CollectiveCall& call, Range range, const std::byte* payload,
                   std::span<float> block) {
  const int terms = call.communicator->size();
  for_each_block(*call.codec, range.length, terms, payload,
                 [&](std::size_t begin, std::size_t length, const std::byte* from) {
                   const std::span<float> values = block.first(length);
                   std::ranges::fill(values, 0.0f);
                   call.codec->add_decoded(from, terms, values);
                   write_scaled(call, range.begin + begin, values);
                 });
}

void write_scaled(const CollectiveCall& call, std::size_t begin, std::span<float> values) {
  const double scale = call.reduction.prescale * call.reduction.postscale;
  std::byte* const to = call.output + begin * size_of(call.dtype);
  base::convert(DType::Float32, values.data(), call.dtype, to, values.size(), scale);
}

}  // namespace kolo::ops
