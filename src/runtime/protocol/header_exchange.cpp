#include "runtime/protocol/header_exchange.hpp"

#include <algorithm>

namespace kolo::runtime {

void Header::merge(const Header& other) {
  has_unknown |= other.has_unknown;
  has_expired |= other.has_expired;
  has_stalled |= other.has_stalled;
  shutdown_rank = std::max(shutdown_rank, other.shutdown_rank);
  thrower_rank = std::max(thrower_rank, other.thrower_rank);
  joined |= other.joined;
  own |= other.own;
  ready &= other.ready;
  newest = std::max(newest, other.newest);
}

}  // namespace kolo::runtime
