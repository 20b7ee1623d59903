#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/process_set.hpp"

namespace kolo::train {

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

/// Those who read files together: the ranks of a process set, or this process alone, which needs no
/// Runtime.
class Readers {
 public:
  /// The ranks of the set of `options`, with the time limit there; the name is the prefix of
  /// operations' names.
  explicit Readers(const OperationOptions& options);
  static Readers this_process();

  int rank() const { return set_ == nullptr ? 0 : set_->rank(); }
  int size() const { return set_ == nullptr ? 1 : set_->size(); }
  int world_rank(std::size_t place) const { return set_ == nullptr ? 0 : set_->ranks()[place]; }
  /// How long they may wait for others.
  std::chrono::nanoseconds timeout() const;

  /// on_all_ranks(), in the operation whose name ends with `step`.
  std::vector<std::string> run(const std::string& step, const std::string& what,
                               const std::function<std::string()>& work) const;
  template <std::invocable Work>
    requires std::is_void_v<std::invoke_result_t<Work>>
  void run(const std::string& step, const std::string& what, const Work& work) const {
    run(step, what, [&] {
      work();
      return std::string();
    });
  }

 private:
  explicit Readers(ProcessSet* set) : set_(set) {}

  ProcessSet* set_;  // null: this process
  std::string prefix_;
  std::optional<std::chrono::nanoseconds> timeout_;  // nothing: KOLO_TIMEOUT
};

}  // namespace kolo::train
