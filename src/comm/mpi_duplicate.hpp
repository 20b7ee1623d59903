#pragma once

#include <memory>

#include "comm/mpi_library.hpp"

namespace kolo::comm {

/// A duplicate of a communicator, which isolates Kolo's messages.
///
/// It is kept as an attribute of the original for the next World over it, and freed with it.
/// Each World has its own tags, because the message that a rank has left may arrive after its World
/// has ended.
class MpiDuplicate {
 public:
  /// Takes one that no other World uses. Collective over `original`.
  explicit MpiDuplicate(MpiHandle original);
  /// Returns it.
  ~MpiDuplicate();
  MpiDuplicate(const MpiDuplicate&) = delete;  // it is returned once
  MpiDuplicate& operator=(const MpiDuplicate&) = delete;

  MpiHandle base() const;
  /// Maps this World's `channel` to a channel of `base`. Any thread.
  int own_channel(int channel);

  /// It is neither returned nor freed: a peer was lost, or this is a forked child.
  void give_up() noexcept { is_given_up_ = true; }

  class Pool;  // all of one communicator

 private:
  struct Entry;

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<Entry> entry_;
  int first_channel_ = 0;
  bool is_given_up_ = false;
};

}  // namespace kolo::comm
