#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "torch/buckets/bucket_plan.hpp"

namespace kolo::tensors {

/// Which parameters are gathered together.
struct UnitPlan {
  std::vector<std::size_t> unit_of;  ///< of each parameter
  std::vector<std::string> names;    ///< of each unit, for error texts
  bool keeps_gathered = false;       ///< until step()
};

struct UnitMember {
  std::string name;  ///< "blocks.3.attention.weight"
  std::size_t size_bytes;
  std::size_t place;                       ///< index in the model, whose order is that of use
  int group = PlannedParameter::kNoGroup;  ///< its parameters form a unit
};

/// Fills units with whole modules, in the order of the model, up to `unit_bytes`; a larger module
/// becomes a unit of its own. Parameters belong to the same module if their names differ only in
/// the last part.
UnitPlan plan_units(const std::vector<UnitMember>& members, std::size_t unit_bytes);

}  // namespace kolo::tensors
