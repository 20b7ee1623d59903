#pragma once

#include <string_view>
#include <vector>

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// The algorithms that a runtime can choose from. A value: adding to one registry does not change
/// copies.
class Registry {
 public:
  /// With the built-in algorithms: the list in registry.cpp.
  Registry();

  /// Adds a user's algorithm; its name must outlive the registry. Names are per collective. Throws
  /// InvalidArgument for a name that is taken or empty, or an algorithm that cannot run.
  void add(const Algorithm& algorithm);

  /// Throws InvalidArgument, naming the choices, if there is none of that name. The reference is
  /// valid until the next `add`.
  const Algorithm& find(Collective collective, std::string_view name) const;

  const std::vector<Algorithm>& algorithms() const { return algorithms_; }

 private:
  std::vector<Algorithm> algorithms_;
};

}  // namespace kolo::ops
