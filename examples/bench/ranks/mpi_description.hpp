#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace bench {

/// What figures of MPI depend on.
struct MpiDescription {
  std::string library{};  ///< its name and version
  /// How a message goes straight from one process's memory to another's inside a node: "cma" (where
  /// the kernel and the container allow it), "knem", "xpmem" …; "none": by two copies. "unknown"
  /// where MPI does not tell.
  std::string single_copy{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MpiDescription, library, single_copy)

/// Of the MPI that this process has started.
MpiDescription describe_mpi();

}  // namespace bench
