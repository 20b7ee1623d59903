#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kolo/communicator.hpp"
#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"

namespace kolo::runtime {

/// The one order in which batches of process sets that overlap are launched on GPUs. A collective
/// holds its GPU until all its ranks have launched it: two ranks that launch two of them in
/// different order may wait for one another for ever.
///
/// World rank 0 numbers the batches; a ticket also says which one each rank has to launch before.
/// Any thread.
class LaunchOrder {
 public:
  /// `world` is a communicator of all ranks for this alone.
  explicit LaunchOrder(std::unique_ptr<Communicator> world) : world_(std::move(world)) {}
  /// Messages that are under way are abandoned with their memory.
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;  // Tasks refer to it
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  /// Gives the next batch of a process set its place, and ends when it is this rank's turn to
  /// launch it. Collective over the set of `path`.
  Task enter(const DataPath& path, std::uint64_t& ticket);
  /// It has been launched, or has failed.
  void leave(std::uint64_t ticket);
  /// Something is lost: there is no order any more that all could keep, and nobody waits for it.
  void give_up();

  /// From now on somebody may ask.
  void expect_questions() { has_questions_ = true; }
  /// On world rank 0: answers who asks. Never blocks; at most a look at the clock where nobody can
  /// ask, or has just been looked for.
  void serve();

 private:
  using Clock = std::chrono::steady_clock;
  using Numbers = std::vector<std::uint64_t>;
  struct Question {
    int source = 0;
    Numbers members;
    Transfer transfer;  // given up before the memory it writes to
  };
  struct Reply {
    Numbers numbers;
    Transfer transfer;
  };

  Task ask(const std::vector<int>& members, Numbers& answer);
  bool has_question();
  Numbers answer_to(const Numbers& members);
  bool is_turn_after(std::uint64_t previous);

  std::mutex lock_;
  std::unique_ptr<Communicator> world_;
  std::uint64_t last_left_ = 0;
  bool is_given_up_ = false;
  // On world rank 0:
  std::atomic<bool> has_questions_{false};
  std::atomic<Clock::time_point> next_look_{};
  std::uint64_t last_ticket_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> last_of_rank_;
  std::optional<Question> question_;  // being received
  std::list<Reply> replies_;
};

}  // namespace kolo::runtime
