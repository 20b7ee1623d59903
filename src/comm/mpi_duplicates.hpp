#pragma once

#include <memory>

#include <mpi.h>

namespace kolo::comm {

/// Two duplicates of a communicator, on which Kolo's messages and collectives meet no others.
///
/// They stay with the original, as an attribute of it, for the next World over it: a message that
/// says that a rank has left may arrive when the World has ended, so each World has tags of its
/// own. They are freed with the original.
class MpiDuplicates {
 public:
  /// Takes two that no other World has now. Collective over `original`.
  explicit MpiDuplicates(MPI_Comm original);
  /// Gives them back.
  ~MpiDuplicates();
  MpiDuplicates(const MpiDuplicates&) = delete;  // they are given back once
  MpiDuplicates& operator=(const MpiDuplicates&) = delete;

  MPI_Comm base() const;    ///< for messages
  MPI_Comm native() const;  ///< for MPI's own collectives, which have no tags to keep them apart
  /// The channel of `base` that is this World's `channel`. Any thread.
  int own_channel(int channel);

  /// They are not given back, nor freed: a peer was lost, or this is a forked child.
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
