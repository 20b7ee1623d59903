#pragma once

#include <vector>

#include "kolo/communicator.hpp"

namespace kolo::ops {

/// A communicator of some ranks of another one, numbered in the order given, on which hierarchical
/// algorithms run others. It sends through its parent, under tags that nothing else uses among its
/// members, and must not outlive it. Transfers belong to the parent.
class SubCommunicator final : public Communicator {
 public:
  /// Not collective. `ranks` are those of `parent`, this one among them. Tags 0 … `tag_count` - 1
  /// become `first_tag` and the following ones.
  SubCommunicator(Communicator& parent, std::vector<int> ranks, int first_tag, int tag_count);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override;
  Transfer receive(std::span<std::byte> data, int source, int tag) override;
  std::optional<Envelope> probe(int tag) override;
  /// Gives up all receives of the parent. Both lists contain ranks of the parent.
  UnderWay give_up_receives() override { return parent_.give_up_receives(); }

 private:
  // This object owns no transfers.
  bool test(std::uint64_t) override { return true; }
  void abandon(std::uint64_t) noexcept override {}

  int parent_rank(int rank) const;
  int parent_tag(int tag) const;

  Communicator& parent_;
  std::vector<int> ranks_;
  int rank_;
  int first_tag_;
  int tag_count_;
};

}  // namespace kolo::ops
