#include "ops/steps/halving.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "ops/kernels/kernels.hpp"
#include "ops/steps/local_steps.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

/// Sends `outgoing` to `peer` and receives `size_bytes` bytes from it, segment by segment:
/// `target(i)` is the buffer of segment i, `use(i)` is called when it has arrived.
template <class Target, class Use>
Task exchange_segments(CollectiveCall call, int peer, std::span<const std::byte> outgoing,
                       std::size_t size_bytes, Target target, Use use) {
  Communicator& communicator = *call.communicator;
  const std::size_t segment = call.segment_bytes;
  const std::size_t sends = segment_count(outgoing.size(), segment);
  const std::size_t receives = segment_count(size_bytes, segment);
  std::array<Transfer, 2> receiving;  // the one that is awaited, and the next
  std::array<Transfer, 2> sending;
  const auto receive = [&](std::size_t i) {
    if (i < receives) receiving[i % 2] = communicator.receive(target(i), peer, kTag);
  };
  receive(0);
  for (std::size_t i = 0; i < std::max(sends, receives); ++i) {
    receive(i + 1);
    co_await sending[i % 2];
    if (i < sends) {
      const Range range = segment_of({0, outgoing.size()}, segment, i);
      sending[i % 2] = communicator.send(outgoing.subspan(range.begin, range.length), peer, kTag);
    }
    co_await receiving[i % 2];
    if (i < receives) use(i);
    co_await yield();
  }
  for (Transfer& send : sending) co_await send;
}

}  // namespace

Cores::Cores(int rank, int size)
    : count_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
      pairs_(size - count_),
      own_(rank < 2 * pairs_ ? rank / 2 : rank - pairs_),
      is_folded_(rank < 2 * pairs_ && rank % 2 == 1) {}

Task exchange(CollectiveCall call, int peer, std::span<const std::byte> outgoing,
              std::span<std::byte> incoming) {
  const auto target = [=](std::size_t i) {
    const Range range = segment_of({0, incoming.size()}, call.segment_bytes, i);
    return incoming.subspan(range.begin, range.length);
  };
  co_await exchange_segments(call, peer, outgoing, incoming.size(), target, [](std::size_t) {});
}

Halving::Halving(const CollectiveCall& call, const Cores& cores, std::byte* work,
                 std::vector<Range> blocks)
    : call_(call),
      cores_(cores),
      source_(call.input),
      work_(work),
      blocks_(std::move(blocks)),
      slot_bytes_(std::min(segment_length(call), all().length) * size_of(call.dtype)),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(2 * slot_bytes_)) {}

Task Halving::reduce() {
  if (call_.reduction.prescale != 1.0) {
    co_await scale_elements(call_, call_.reduction.prescale, source_, work_, all().length);
    source_ = work_;
  }
  if (cores_.is_folded()) {
    co_await exchange(call_, cores_.partner(), bytes_of(call_, source_, all()), {});
    co_return;
  }
  if (cores_.is_paired()) co_await combine_with(cores_.partner(), {}, all(), 1.0);
  int first = 0;  // of the blocks that this core has
  for (int distance = cores_.count() / 2; distance > 0; distance /= 2) {
    const bool keeps_upper = (cores_.own() & distance) != 0;
    const int kept = keeps_upper ? first + distance : first;
    const int given = keeps_upper ? first : first + distance;
    const double postscale = distance == 1 ? call_.reduction.postscale : 1.0;
    co_await combine_with(cores_.rank_of(cores_.own() ^ distance), blocks(given, distance),
                          blocks(kept, distance), postscale);
    first = kept;
  }
}

Range Halving::blocks(int first, int count) const {
  const Range& front = blocks_[static_cast<std::size_t>(first)];
  const Range& back = blocks_[static_cast<std::size_t>(first + count - 1)];
  return {front.begin, back.begin + back.length - front.begin};
}

/// Afterwards, this core's partial results are in `work`.
Task Halving::combine_with(int peer, Range given, Range kept, double postscale) {
  const Reduction reduction = with_scales(call_.reduction, 1.0, postscale);
  const std::size_t segment = segment_length(call_);
  const auto target = [&](std::size_t i) {
    const Range range = segment_of({0, kept.length}, segment, i);
    return bytes_of(call_, scratch_.get() + i % 2 * slot_bytes_, {0, range.length});
  };
  const auto add = [&](std::size_t i) {
    const Range range = segment_of(kept, segment, i);
    const std::array<const std::byte*, 2> inputs{bytes_of(call_, source_, range).data(),
                                                 target(i).data()};
    const std::array<std::byte*, 1> outputs{bytes_of(call_, work_, range).data()};
    combine(call_.dtype, reduction, inputs, outputs, range.length);
  };
  co_await exchange_segments(call_, peer, bytes_of(call_, source_, given),
                             kept.length * size_of(call_.dtype), target, add);
  source_ = work_;
}

}  // namespace kolo::ops
