#include "ops/steps/node_places.hpp"

#include <algorithm>

namespace kolo::ops {
namespace {

constexpr std::size_t kPieceUnit = 64 / sizeof(float);

}  // namespace

NodePlaces::NodePlaces(std::span<const int> node_of_rank, int rank)
    : members_(static_cast<std::size_t>(*std::ranges::max_element(node_of_rank)) + 1),
      node_(node_of_rank[static_cast<std::size_t>(rank)]) {
  for (std::size_t i = 0; i < node_of_rank.size(); ++i) {
    members_[static_cast<std::size_t>(node_of_rank[i])].push_back(static_cast<int>(i));
  }
  place_ = static_cast<int>(std::ranges::find(neighbours(), rank) - neighbours().begin());
  pieces_ = static_cast<int>(std::ranges::min(members_, {}, &std::vector<int>::size).size());
}

std::vector<int> NodePlaces::peers() const {
  std::vector<int> peers;
  for (const std::vector<int>& node : members_) {
    peers.push_back(node[static_cast<std::size_t>(place_)]);
  }
  return peers;
}

std::vector<Range> NodePlaces::pieces(std::size_t count) const {
  std::vector<Range> pieces = pieces_of(count, pieces_, kPieceUnit);
  pieces.resize(neighbours().size(), {count, 0});
  return pieces;
}

}  // namespace kolo::ops
