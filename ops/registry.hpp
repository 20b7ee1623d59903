#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// The algorithms that a runtime can choose from, and those that the user prefers. A value: adding
/// to one registry does not change copies.
class Registry {
 public:
  /// With the built-in algorithms: the list in registry.cpp.
  Registry();

  /// Adds a user's algorithm; its name must outlive the registry. Names are per collective. Throws
  /// InvalidArgument for a name that is taken, is empty or has a comma, or an algorithm that cannot
  /// run.
  void add(const Algorithm& algorithm);

  /// Throws InvalidArgument, naming the choices, if there is none of that name. The reference is
  /// valid until the next `add`.
  const Algorithm& find(Collective collective, std::string_view name) const;

  /// Reads KOLO_ALGORITHM: "collective:algorithm,…", each collective once at most; empty: no
  /// preferences. Throws InvalidArgument, naming the entry and the choices.
  void prefer(std::string_view entries);

  /// The algorithm's name; empty: the fastest one.
  std::string_view preferred(Collective collective) const;

  const std::vector<Algorithm>& algorithms() const { return algorithms_; }

 private:
  std::string names_of(Collective collective) const;

  std::vector<Algorithm> algorithms_;
  std::map<Collective, std::string_view> preferred_;
};

}  // namespace kolo::ops
