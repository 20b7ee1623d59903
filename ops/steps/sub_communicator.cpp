#include "ops/steps/sub_communicator.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::ops {

SubCommunicator::SubCommunicator(Communicator& parent, std::vector<int> ranks, int first_tag,
                                 int tag_count)
    : parent_(parent), ranks_(std::move(ranks)), first_tag_(first_tag), tag_count_(tag_count) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), parent.rank());
  if (self == ranks_.end()) {
    throw InvalidArgument("sub-communicator: rank " + std::to_string(parent.rank()) +
                          " is none of its members");
  }
  rank_ = static_cast<int>(self - ranks_.begin());
}

int SubCommunicator::parent_rank(int rank) const {
  if (rank >= 0 && rank < size()) return ranks_[static_cast<std::size_t>(rank)];
  throw InvalidArgument("sub-communicator: rank " + std::to_string(rank) +
                        " is out of range, it has " + std::to_string(size()));
}

int SubCommunicator::parent_tag(int tag) const {
  if (tag >= 0 && tag < tag_count_) return first_tag_ + tag;
  throw InvalidArgument("sub-communicator: tag " + std::to_string(tag) +
                        " is out of range, it has " + std::to_string(tag_count_));
}

Transfer SubCommunicator::send(std::span<const std::byte> data, int destination, int tag) {
  Transfer transfer = parent_.send(data, parent_rank(destination), parent_tag(tag));
  bytes_sent_ += data.size();
  return transfer;
}

Transfer SubCommunicator::receive(std::span<std::byte> data, int source, int tag) {
  return parent_.receive(data, parent_rank(source), parent_tag(tag));
}

std::optional<Communicator::Envelope> SubCommunicator::probe(int tag) {
  const std::optional<Envelope> envelope = parent_.probe(parent_tag(tag));
  if (!envelope) return std::nullopt;
  const auto source = std::find(ranks_.begin(), ranks_.end(), envelope->source);
  return Envelope{static_cast<int>(source - ranks_.begin()), envelope->size_bytes};
}

}  // namespace kolo::ops
