#pragma once

#include <memory>

#include <mpi.h>

namespace kolo::comm {

/// Two duplicates of a communicator, which isolate Kolo's messages and collectives.
///
/// They stay with the original, as one of its attributes, for the next World over it. A message
/// that says that a rank has left may arrive after the World has ended, so each World has its own
/// tags. They are freed with the original.
class MpiDuplicates {
 public:
  /// Takes two that no other World uses. Collective over `original`.
  explicit MpiDuplicates(MPI_Comm original);
  /// Returns them.
  ~MpiDuplicates();
  MpiDuplicates(const MpiDuplicates&) = delete;  // they are returned once
  MpiDuplicates& operator=(const MpiDuplicates&) = delete;

  MPI_Comm base() const;    ///< for messages
  MPI_Comm native() const;  ///< for MPI's own collectives, which have no tags to separate them
  /// The channel of `base` that is this World's `channel`. Any thread.
  int own_channel(int channel);

  /// They will be neither returned nor freed: a peer was lost, or this is a forked child.
  void give_up() noexcept { is_given_up_ = true; }

  class Pool;  // those of one communicator

 private:
  struct Pair;

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<Pair> pair_;
  int first_channel_ = 0;
  bool is_given_up_ = false;
};

}  // namespace kolo::comm
