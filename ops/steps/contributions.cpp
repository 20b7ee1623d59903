#include "ops/steps/contributions.hpp"

#include <algorithm>
#include <utility>

#include "ops/kernels/kernels.hpp"

namespace kolo::ops {

Contributions::Contributions(const CollectiveCall& call, std::vector<Range> pieces, int tag)
    : call_(call),
      communicator_(*call.communicator),
      rank_(communicator_.rank()),
      size_(communicator_.size()),
      tag_(tag),
      pieces_(std::move(pieces)),
      segment_(segment_length(call)),
      longest_(longest_of(pieces_)),
      inputs_(static_cast<std::size_t>(size_)) {
  const std::size_t own = pieces_[static_cast<std::size_t>(rank_)].length;
  slot_bytes_ = std::min(segment_, own) * size_of(call.dtype);
  scratch_ = std::make_unique_for_overwrite<std::byte[]>(2 * static_cast<std::size_t>(size_) *
                                                         slot_bytes_);
}

void Contributions::start(std::size_t segment) {
  std::vector<Transfer>& transfers = transfers_[segment % 2];
  const Range own = range(rank_, segment);
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;  // so that not all send to rank 0 first
    if (own.length > 0) {
      const auto target = bytes_of(call_, slot(peer, segment), {0, own.length});
      transfers.push_back(communicator_.receive(target, peer, tag_));
    }
    const Range theirs = range(peer, segment);
    if (theirs.length > 0) {
      transfers.push_back(communicator_.send(bytes_of(call_, call_.input, theirs), peer, tag_));
    }
  }
}

Task Contributions::finish(std::size_t segment) {
  std::vector<Transfer>& transfers = transfers_[segment % 2];
  for (Transfer& transfer : transfers) co_await transfer;
  transfers.clear();
}

void Contributions::combine(std::size_t segment, std::byte* output) {
  const Range own = range(rank_, segment);
  for (int peer = 0; peer < size_; ++peer) {
    inputs_[static_cast<std::size_t>(peer)] = slot(peer, segment);
  }
  inputs_[static_cast<std::size_t>(rank_)] = bytes_of(call_, call_.input, own).data();
  const std::array<std::byte*, 1> outputs{output};
  ops::combine(call_.dtype, call_.reduction, inputs_, outputs, own.length);
}

std::byte* Contributions::slot(int rank, std::size_t segment) {
  const std::size_t index = segment % 2 * static_cast<std::size_t>(size_);
  return scratch_.get() + (index + static_cast<std::size_t>(rank)) * slot_bytes_;
}

}  // namespace kolo::ops
