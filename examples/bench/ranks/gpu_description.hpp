#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace bench {

/// The properties of a GPU on which measured times depend.
struct GpuDescription {
  std::string name{};    ///< empty: no GPU is measured
  std::string driver{};  ///< its version, and the newest CUDA that it knows
  std::string cuda{};    ///< the runtime's version
  std::string nccl{};
  std::string nccl_algo{};  ///< the algorithms that all of this process's communicators may use
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuDescription, name, driver, cuda, nccl, nccl_algo)

}  // namespace bench
