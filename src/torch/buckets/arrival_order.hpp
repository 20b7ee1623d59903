#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// Records the order in which gradients arrive on this rank, and which of them are sparse. The next
/// layout of buckets follows it.
class ArrivalOrder {
 public:
  explicit ArrivalOrder(std::size_t parameters) : was_sparse_(parameters) {}

  void record(std::size_t parameter, bool is_sparse);

  /// The layout that all ranks use.
  struct Agreed {
    std::vector<std::size_t> order;  ///< of all parameters
    std::vector<bool> sparse;        ///< of each parameter: sparse on any rank
  };
  /// The order of the first rank of the set that has not joined; parameters without a gradient come
  /// last. Collective, under the name `name`.
  Agreed agree(ProcessSet& set, const std::string& name) const;

  /// `order` with every parameter once: missing ones are appended, the last parameter first.
  static std::vector<std::size_t> completed(std::vector<std::size_t> order, std::size_t parameters);

 private:
  std::vector<std::size_t> order_;  // may hold a parameter twice
  std::vector<bool> was_sparse_;
};

}  // namespace kolo::tensors
