#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace bench {

/// The properties of MPI on which measured times depend.
struct MpiDescription {
  std::string library{};  ///< its name and version
  /// How a message is copied directly from one process's memory to another's inside a node: "cma"
  /// (if the kernel and the container allow it), "knem", "xpmem" …; "none": it is copied twice;
  /// "unknown": MPI does not say.
  std::string single_copy{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MpiDescription, library, single_copy)

/// Describes the MPI that this process has initialized.
MpiDescription describe_mpi();

}  // namespace bench
