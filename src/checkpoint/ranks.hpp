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

namespace kolo::checkpoints {

/// Those who save or load together: the ranks of a process set, or this process alone, which needs
/// no Runtime. They come to the same end: an error on one is an error on all.
class Ranks {
 public:
  /// The ranks of the set of `options`, with the time limit there; the name, or a new one, is the
  /// prefix of operations' names.
  explicit Ranks(const OperationOptions& options = {});
  static Ranks this_process();

  int rank() const { return set_ == nullptr ? 0 : set_->rank(); }
  int size() const { return set_ == nullptr ? 1 : set_->size(); }
  int world_rank(std::size_t place) const { return set_ == nullptr ? 0 : set_->ranks()[place]; }
  /// How long they may wait for others.
  std::chrono::nanoseconds timeout() const;

  /// Runs `work` on every rank and returns the results in rank order. Collective and blocking: one
  /// operation, whose name ends with `step`. If `work` throws on any rank, or a rank has joined,
  /// throws the first such rank's error on all: InvalidArgument, or BackendError for any other
  /// exception; its printable text begins with `what` and, unless it is this process alone, the
  /// rank.
  std::vector<std::string> run(const std::string& step, const std::string& what,
                               const std::function<std::string()>& work) const;
  /// For work without a result.
  template <std::invocable Work>
    requires std::is_void_v<std::invoke_result_t<Work>>
  void run(const std::string& step, const std::string& what, const Work& work) const {
    run(step, what, [&] {
      work();
      return std::string();
    });
  }

 private:
  explicit Ranks(ProcessSet* set) : set_(set) {}

  ProcessSet* set_;  // null: this process
  std::string prefix_;
  std::optional<std::chrono::nanoseconds> timeout_;  // nothing: KOLO_TIMEOUT
};

}  // namespace kolo::checkpoints
