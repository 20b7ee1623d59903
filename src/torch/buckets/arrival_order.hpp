#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// In which order gradients have arrived for the first time on this rank, and which of them were
/// sparse: what buckets are laid out by.
class ArrivalOrder {
 public:
  explicit ArrivalOrder(std::size_t parameters) : was_sparse_(parameters) {}

  void note(std::size_t parameter, bool is_sparse);

  /// What all ranks follow.
  struct Agreed {
    std::vector<std::size_t> order;  ///< of all parameters
    std::vector<bool> sparse;        ///< of each parameter: on any rank
  };
  /// The order of the first rank of the set that has not joined; what has not arrived comes last.
  /// Collective, under the name `name`.
  Agreed agree(ProcessSet& set, const std::string& name) const;

  /// An order known before, in which any parameters that are missing come last.
  static std::vector<std::size_t> completed(std::vector<std::size_t> order, std::size_t parameters);

 private:
  std::vector<std::size_t> order_;  // some may be in it twice
  std::vector<bool> was_sparse_;
};

}  // namespace kolo::tensors
