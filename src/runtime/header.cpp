#include "runtime/header.hpp"

#include <algorithm>

namespace kolo::runtime {

void Header::merge(const Header& other) {
  has_unknown |= other.has_unknown;
  has_expired |= other.has_expired;
  has_stalled |= other.has_stalled;
  all_joined &= other.all_joined;
  shutdown_rank = std::max(shutdown_rank, other.shutdown_rank);
  joining_rank = std::max(joining_rank, other.joining_rank);
  own |= other.own;
  ready &= other.ready;
}

}  // namespace kolo::runtime
