#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kolo/runtime.hpp"
#include "kolo/shared_buffer.hpp"
#include "programs/memory.hpp"
#include "programs/program.hpp"
#include "programs/rank_plan.hpp"
#include "programs/watch.hpp"

namespace kolo::programs {

/// By operation: how many ranks have reached it; null if ranks share no memory.
using Arrivals = std::vector<std::atomic<int>>;

/// Runs one rank of a program. Failures are reported to the watch, and the rank continues, so that
/// the others do not wait forever.
class RankRunner {
 public:
  RankRunner(const Program& program, Runtime& runtime, Watch& watch, Arrivals* arrivals);
  ~RankRunner();
  RankRunner(const RankRunner&) = delete;  // its threads refer to it
  RankRunner& operator=(const RankRunner&) = delete;

  void run();

  /// By operation: a hash of the results that must be equal on all ranks; otherwise 0.
  const std::vector<std::uint64_t>& digests() const { return digests_; }
  /// By joining: the rank that joined last; -1 if this rank did not take part.
  const std::vector<int>& last_joined() const { return last_joined_; }

 private:
  /// A submitted operation that has not been waited for.
  struct Record {
    const Operation* operation = nullptr;
    Wait wait = Wait::Block;
    std::shared_ptr<OperationMemory> memory;
    Handle handle;
  };

  void run_round(std::size_t round, const RoundPlan& plan);
  void submit_all(const std::vector<Step>& steps);
  void submit_on_thread(const std::vector<Step>& steps, int thread);
  void submit(const Step& step);
  void expect_refusal(const Operation& operation);

  void settle_conflicts(const Operation& operation);
  void settle(const std::function<bool(const Operation&)>& which);
  void wait_for(int id);
  void wait_for(Record& record);
  void wait_for_release(const Record& record);
  void check_result(const Record& record);

  void run_blocking_call(const BlockingCall& call);
  void add_set(const BlockingCall& call);
  void remove_set(const BlockingCall& call);
  void make_buffer(const BlockingCall& call);
  void join(const BlockingCall& call);
  void shut_down();

  ProcessSet& set(int number) { return *sets_[static_cast<std::size_t>(number)]; }
  bool is_member(int set) const;
  void note(Watch::Activity activity, int operation = -1) {
    watch_.note(rank_, round_, activity, operation);
  }
  void fail(const std::string& text) { watch_.fail(rank_, text); }
  void fail(const Operation& operation, const std::string& text);
  /// `action` must throw an error of this kind, or nothing if `error` is empty.
  bool expect_end(const std::string& what, const std::optional<ErrorKind>& error,
                  const std::function<void()>& action);

  const Program& program_;
  Runtime& runtime_;
  Watch& watch_;
  Arrivals* arrivals_;
  const int rank_;
  std::atomic<int> round_{0};
  std::vector<ProcessSet*> sets_;  // by number, including removed ones
  std::map<int, Record> records_;
  std::map<int, SharedBuffer> buffers_;
  std::vector<std::uint64_t> digests_;
  std::vector<int> last_joined_;
  std::thread joiner_;
};

}  // namespace kolo::programs
