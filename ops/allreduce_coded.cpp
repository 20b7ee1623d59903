// All-reduce through a codec: every rank is responsible for one piece of the buffer.
//
//   1 contribute  every rank encodes piece p of its input and sends it to rank p, for all p
//   2 combine     rank p decodes and adds up piece p from all ranks, in rank order, in float32
//   3 gather      rank p encodes the sum and sends it to all ranks; all decode it, rank p too, so
//                 that results have the same bits everywhere
//
// Steps 1 and 2 are in coded_pieces.hpp. The encoding error of step 3 is kept in the residual of
// rank p at its own piece, which step 1 does not use. The residuals of all ranks together are thus
// the error of the sum, and are added to the next one.
//
// Bytes: a rank sends (n-1)/n of its encoded input, and n-1 times the encoded sum of its piece.
// Worlds: any size of two or more; meant for few ranks, since all pairs communicate at once.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/coded_pieces.hpp"
#include "ops/steps/contributions.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

/// Step 3.
class CodedResults {
 public:
  CodedResults(const CollectiveCall& call, const CodedContributions& contributions,
               std::size_t longest)
      : call_(call),
        contributions_(contributions),
        slot_bytes_(coded_bytes(*call.codec, longest, call.communicator->size())),
        slots_(2 * static_cast<std::size_t>(call.communicator->size()) * slot_bytes_),
        block_(std::min(call.codec->block(), longest)) {}

  /// Sends this rank's sum of the segment, and starts to receive the others'.
  void start(std::size_t segment, std::span<float> sum) {
    Communicator& communicator = *call_.communicator;
    const int rank = communicator.rank();
    const int size = communicator.size();
    const Range own = contributions_.range(rank, segment);
    float* const residual = call_.residual != nullptr ? call_.residual + own.begin : nullptr;
    encode_with_residual(*call_.codec, sum, residual, size, slot(rank, segment), block_);
    std::vector<Transfer>& transfers = transfers_[segment % 2];
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      const std::size_t bytes = payload_bytes(peer, segment);
      if (bytes > 0) {
        transfers.push_back(communicator.receive({slot(peer, segment), bytes}, peer, kResultTag));
      }
      const std::size_t own_bytes = payload_bytes(rank, segment);
      if (own_bytes > 0) {
        transfers.push_back(communicator.send({slot(rank, segment), own_bytes}, peer, kResultTag));
      }
    }
  }

  Task finish(std::size_t segment) {
    std::vector<Transfer>& transfers = transfers_[segment % 2];
    for (Transfer& transfer : transfers) co_await transfer;
    transfers.clear();
    for (int rank = 0; rank < call_.communicator->size(); ++rank) {
      write_decoded(call_, contributions_.range(rank, segment), slot(rank, segment), block_);
    }
  }

 private:
  std::size_t payload_bytes(int rank, std::size_t segment) const {
    const std::size_t length = contributions_.range(rank, segment).length;
    return coded_bytes(*call_.codec, length, call_.communicator->size());
  }
  std::byte* slot(int rank, std::size_t segment) {
    const auto size = static_cast<std::size_t>(call_.communicator->size());
    return slots_.data() + (segment % 2 * size + static_cast<std::size_t>(rank)) * slot_bytes_;
  }

  const CollectiveCall& call_;
  const CodedContributions& contributions_;
  std::size_t slot_bytes_;
  std::vector<std::byte> slots_;  // for the payloads of all ranks, of two segments
  std::vector<float> block_;
  std::array<std::vector<Transfer>, 2> transfers_;  // of even and odd segments
};

}  // namespace

Task allreduce_coded(CollectiveCall call) {
  std::vector<Range> pieces = pieces_of(call.count, call.communicator->size(), call.codec->block());
  const std::size_t longest = std::min(coded_segment_length(call), longest_of(pieces));
  CodedContributions contributions(call, std::move(pieces), kContributionTag);
  CodedResults results(call, contributions, longest);
  const std::size_t segments = contributions.segments();
  if (segments > 0) contributions.start(0);
  for (std::size_t i = 0; i < segments; ++i) {
    co_await contributions.finish(i);
    if (i > 0) co_await results.finish(i - 1);
    if (i + 1 < segments) contributions.start(i + 1);
    results.start(i, contributions.sum(i));
    co_await yield();
  }
  if (segments > 0) co_await results.finish(segments - 1);
}

}  // namespace kolo::ops
