// All-gather over a ring: every rank sends to its right neighbour only and receives from its left.
//
// Every rank copies its own block to its place. At step s = 0 … n-2 rank r sends block r-s and
// receives block r-s-1 (mod n), which it sends in the next step.
//
//   n = 3        rank 0       rank 1       rank 2
//   start        A . .        . B .        . . C
//   step 0       A . C        A B .        . B C        each block moved one to the right
//   step 1       A B C        A B C        A B C
//
// Blocks are sent in segments, each of which is forwarded as soon as it has arrived. They may
// differ in length and may be empty.
//
// Bytes: a rank sends all blocks but its right neighbour's, the minimum, in n-1 steps of latency.
// Worlds: any size.
#include <array>
#include <span>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/local_steps.hpp"
#include "ops/steps/messages.hpp"
#include "ops/steps/piecewise.hpp"

namespace kolo::ops {
namespace {

/// All segments that arrive from the left, in order of arrival.
std::vector<Range> find_arrivals(std::span<const Range> blocks, int rank, std::size_t segment) {
  const int size = static_cast<int>(blocks.size());
  std::vector<Range> arrivals;
  for (int step = 0; step < size - 1; ++step) {
    const Range block = blocks[static_cast<std::size_t>((rank - step - 1 + size) % size)];
    for (std::size_t i = 0; i < segment_count(block.length, segment); ++i) {
      arrivals.push_back(segment_of(block, segment, i));
    }
  }
  return arrivals;
}

}  // namespace

Task allgather_ring_pieces(CollectiveCall call, std::span<const Range> blocks) {
  Communicator& communicator = *call.communicator;
  const int rank = communicator.rank();
  const int size = communicator.size();
  const int left = (rank + size - 1) % size;
  const int right = (rank + 1) % size;
  const std::size_t segment = segment_length(call);
  const Range own = blocks[static_cast<std::size_t>(rank)];
  co_await copy_elements(call, call.input, bytes_of(call, call.output, own).data(), own.length);
  if (size == 1) co_return;

  std::vector<Transfer> sends;
  const auto send = [&](Range range) {
    const std::span<const std::byte> data = bytes_of(call, call.output, range);
    sends.push_back(communicator.send(data, right, kTag));
  };
  for (std::size_t i = 0; i < segment_count(own.length, segment); ++i) {
    send(segment_of(own, segment, i));
  }

  const std::vector<Range> arrivals = find_arrivals(blocks, rank, segment);
  // The right neighbour already has its own block, whose segments arrive last: they are not
  // forwarded.
  const Range rights = blocks[static_cast<std::size_t>(right)];
  const std::size_t passed_on = arrivals.size() - segment_count(rights.length, segment);
  std::array<Transfer, 2> receives;  // the one that is awaited, and the next
  const auto receive = [&](std::size_t i) {
    const auto target = bytes_of(call, call.output, arrivals[i]);
    receives[i % 2] = communicator.receive(target, left, kTag);
  };
  if (!arrivals.empty()) receive(0);
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    if (i + 1 < arrivals.size()) receive(i + 1);
    co_await receives[i % 2];
    if (i < passed_on) send(arrivals[i]);
    co_await yield();
  }
  for (Transfer& transfer : sends) co_await transfer;
}

Task allgather_ring(CollectiveCall call) {
  const std::vector<Range> blocks = ranges_of(call.counts);
  co_await allgather_ring_pieces(call, blocks);
}

}  // namespace kolo::ops
