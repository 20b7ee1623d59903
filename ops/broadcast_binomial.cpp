// Broadcast over a binomial tree: in every step all ranks that have the data forward it, so that
// their number doubles.
//
// Ranks are counted from the root: number v = (rank - root) mod n. The lowest set bit of v says
// when v gets the data: its parent is v without that bit, its children are v plus each smaller
// power of two. The root has the children 1, 2, 4, …
//
//   n = 8         0
//              /  |  \        children in the order 4, 2, 1: the largest subtree first
//            4    2    1
//           / \   |
//          6   5  3
//          |
//          7
//
// Long buffers are sent in segments: a rank forwards segment i while segment i+1 arrives.
//
// Bytes: a rank sends the buffer once to each child, at most ceil(log2 n) times, and receives it
// once. Latency: ceil(log2 n) steps. Worlds: any size, any root.
#include <array>
#include <bit>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

struct Place {
  bool is_root;
  int parent;
  std::vector<int> children;
};

Place find_place(int rank, int root, int size) {
  const auto to_rank = [&](unsigned number) { return (static_cast<int>(number) + root) % size; };
  const auto number = static_cast<unsigned>((rank - root + size) % size);
  const auto count = static_cast<unsigned>(size);
  // The root's children are at all powers of two below n.
  const unsigned own_bit = number == 0 ? std::bit_ceil(count) : number & (~number + 1);
  Place place{number == 0, to_rank(number == 0 ? 0 : number - own_bit), {}};
  for (unsigned bit = own_bit / 2; bit > 0; bit /= 2) {
    if (number + bit < count) place.children.push_back(to_rank(number + bit));
  }
  return place;
}

}  // namespace

Task broadcast_binomial(CollectiveCall call) {
  Communicator& communicator = *call.communicator;
  const Place place = find_place(communicator.rank(), call.root, communicator.size());
  const std::size_t segment = segment_length(call);
  const std::size_t segments = segment_count(call.count, segment);
  const auto data_of = [&](std::size_t i) {
    return bytes_of(call, call.output, segment_of({0, call.count}, segment, i));
  };

  std::array<Transfer, 2> receives;  // the one that is awaited, and the next
  const auto receive = [&](std::size_t i) {
    if (!place.is_root && i < segments) {
      receives[i % 2] = communicator.receive(data_of(i), place.parent, kTag);
    }
  };
  std::vector<Transfer> sends;
  receive(0);
  for (std::size_t i = 0; i < segments; ++i) {
    receive(i + 1);
    co_await receives[i % 2];
    for (Transfer& send : sends) co_await send;  // limits the sends in flight
    sends.clear();
    for (const int child : place.children) {
      sends.push_back(communicator.send(data_of(i), child, kTag));
    }
    co_await yield();
  }
  for (Transfer& send : sends) co_await send;
}

}  // namespace kolo::ops
