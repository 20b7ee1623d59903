#include "torch/sharding/unit_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace kolo::tensors {
namespace {

/// Parameters that are in the same unit.
struct Cluster {
  std::string name;
  std::size_t size_bytes = 0;
  bool is_group = false;
  std::vector<std::size_t> members;
};

std::string module_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

/// In the order of the model.
std::vector<Cluster> clusters_of(const std::vector<UnitMember>& members) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return members[i].place; });
  std::vector<Cluster> clusters;
  std::map<std::pair<int, std::string>, std::size_t> known;
  for (const std::size_t i : order) {
    const UnitMember& member = members[i];
    const bool is_group = member.group != PlannedParameter::kNoGroup;
    const std::string module = module_of(member.name);
    const auto [found, is_new] =
        known.emplace(std::pair{member.group, is_group ? "" : module}, clusters.size());
    if (is_new) clusters.push_back({module, 0, is_group, {}});
    clusters[found->second].size_bytes += member.size_bytes;
    clusters[found->second].members.push_back(i);
  }
  return clusters;
}

}  // namespace

UnitPlan plan_units(const std::vector<UnitMember>& members, std::size_t unit_bytes) {
  UnitPlan plan{std::vector<std::size_t>(members.size()), {}};
  bool is_open = false;  // the last unit may take more modules
  std::size_t used_bytes = 0;
  for (const Cluster& cluster : clusters_of(members)) {
    if (!is_open || cluster.is_group || used_bytes + cluster.size_bytes > unit_bytes) {
      plan.names.push_back(cluster.name);
      used_bytes = 0;
    }
    for (const std::size_t i : cluster.members) plan.unit_of[i] = plan.names.size() - 1;
    used_bytes += cluster.size_bytes;
    is_open = !cluster.is_group;
  }
  return plan;
}

}  // namespace kolo::tensors
