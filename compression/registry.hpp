#pragma once

#include <string_view>
#include <vector>

#include "kolo/compressor.hpp"

namespace kolo::compression {

/// The compressors that a runtime knows. A value: adding to one registry changes no other.
class Registry {
 public:
  /// With the built-in compressors: the list in registry.cpp.
  Registry();

  /// Adds a user's compressor, which must outlive the registry. Throws InvalidArgument for a name
  /// that is taken or empty.
  void add(const Compressor& compressor);

  /// Throws InvalidArgument, which names the choices, when there is none of that name.
  const Compressor& find(std::string_view name) const;

  const std::vector<const Compressor*>& compressors() const { return compressors_; }

 private:
  std::vector<const Compressor*> compressors_;
};

}  // namespace kolo::compression
