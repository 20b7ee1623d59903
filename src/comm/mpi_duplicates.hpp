#pragma once

#include <memory>

#include <mpi.h>

namespace kolo::comm {

/// Two duplicates of a communicator, which isolate Kolo's messages and collectives.
///
/// They are kept as an attribute of the original for the next World over it, and freed with it.
/// Each World has its own tags, because the message that a rank has left may arrive after its World
/// has ended.
class MpiDuplicates {
 public:
  /// Takes a pair that no other World uses. Collective over `original`.
  explicit MpiDuplicates(MPI_Comm original);
  /// Returns the pair.
  ~MpiDuplicates();
  MpiDuplicates(const MpiDuplicates&) = delete;  // they are returned once
  MpiDuplicates& operator=(const MpiDuplicates&) = delete;

  MPI_Comm base() const;    ///< for messages
  MPI_Comm native() const;  ///< for MPI's own collectives, which have no tags to separate them
  /// Maps this World's `channel` to a channel of `base`. Any thread.
  int own_channel(int channel);

  /// The pair is neither returned nor freed: a peer was lost, or this is a forked child.
  void give_up() noexcept { is_given_up_ = true; }

  class Pool;  // all pairs of one communicator

 private:
  struct Pair;

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<Pair> pair_;
  int first_channel_ = 0;
  bool is_given_up_ = false;
};

}  // namespace kolo::comm
