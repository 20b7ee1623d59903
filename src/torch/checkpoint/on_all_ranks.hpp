#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "kolo/collectives.hpp"

namespace kolo::tensors {

/// Runs `work` on every rank of the set and returns the results in rank order. Collective
/// and blocking: one operation, which `options` name. If `work` throws on any rank, or a rank has
/// joined, throws the first such rank's error on all: InvalidArgument, or BackendError for any
/// other exception; its printable text begins with `what` and the rank.
std::vector<std::string> on_all_ranks(const OperationOptions& options, const std::string& what,
                                      const std::function<std::string()>& work);
/// The same for work without a result.
template <std::invocable Work>
  requires std::is_void_v<std::invoke_result_t<Work>>
void on_all_ranks(const OperationOptions& options, const std::string& what, const Work& work) {
  on_all_ranks(options, what, [&] {
    work();
    return std::string();
  });
}

}  // namespace kolo::tensors
