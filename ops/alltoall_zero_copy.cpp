// All-to-all of inputs that all ranks of a node can see.
//
//   1 a rank writes into its segment of the window where the block for each rank begins in its
//     input, which it alone knows, and enters a stage: its input is complete
//   2 it reads its block of each other rank's input, as soon as that one has entered the stage
//   3 wait until all ranks have finished step 2
//
//   inputs      rank 0     rank 1     rank 2
//              [ 0>0 ]    [ 1>0 ]    [ 2>0 ]  --> output of rank 0
//              [ 0>1 ]    [ 1>1 ]    [ 2>1 ]  --> output of rank 1
//              [ 0>2 ]    [ 1>2 ]    [ 2>2 ]  --> output of rank 2
//
// Bytes: a rank reads what it receives (and a number) from other ranks' memory, and writes none
// there. Worlds: any size, on one node, with `peer_buffers`.
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {
namespace {

/// Where the blocks that each rank sends begin in its input: one list per rank, in the window.
class BlockPlaces {
 public:
  explicit BlockPlaces(const CollectiveCall& call)
      : slots_(*call.window, kLineBytes,
               {.count = 1,
                .min_bytes =
                    segment_count(call.send_counts.size() * sizeof(std::uint64_t), kLineBytes) *
                    kLineBytes},
               "all-to-all") {}

  std::uint64_t* of(int sender) const {
    return reinterpret_cast<std::uint64_t*>(slots_.of(sender, 0));
  }

 private:
  static constexpr std::size_t kLineBytes = 64;

  WindowSlots slots_;
};

}  // namespace

Task alltoall_zero_copy(CollectiveCall call) {
  SharedWindow& window = *call.window;
  const int rank = window.rank();
  const std::size_t length = segment_length(call);
  const std::vector<Range> received = ranges_of(call.receive_counts);
  const BlockPlaces places(call);

  co_await window.all_reached(window.stage());
  std::uint64_t begin = 0;
  for (std::size_t peer = 0; peer < call.send_counts.size(); ++peer) {
    places.of(rank)[peer] = begin;
    begin += call.send_counts[peer];
  }
  const std::uint64_t stage = window.enter_stage();
  for (int step = 0; step < window.size(); ++step) {
    const int sender = (rank + step) % window.size();  // its own block while the others get there
    const auto index = static_cast<std::size_t>(sender);
    co_await window.reached(sender, stage);
    const Range block{places.of(sender)[rank], received[index].length};
    for (std::size_t i = 0; i < segment_count(block.length, length); ++i) {
      const std::byte* const source =
          bytes_of(call, call.peer_buffers[index], segment_of(block, length, i)).data();
      const auto target = bytes_of(call, call.output, segment_of(received[index], length, i));
      if (sender == rank) {
        std::memcpy(target.data(), source, target.size());
      } else {
        copy_from_peer(window, source, target);
      }
      co_await yield();
    }
  }
  co_await window.all_reached(window.enter_stage());
}

}  // namespace kolo::ops
