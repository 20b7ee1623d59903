#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "comm/gpu/gpu.hpp"
#include "kolo/communicator.hpp"
#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"

namespace kolo::runtime {

/// Numbers the batches of all process sets, from 1 on. Not thread-safe.
class LaunchTickets {
 public:
  using Numbers = std::vector<std::uint64_t>;

  /// Numbers the next batch of a set.
  ///
  /// @param members the set's world ranks
  /// @return for each member the number of its previous batch, after which it may launch this one
  ///   (0: there is none); at the end the number of this batch
  Numbers next(const Numbers& members) {
    Numbers numbers;
    ++last_;
    for (const std::uint64_t member : members) {
      numbers.push_back(std::exchange(last_of_rank_[member], last_));
    }
    numbers.push_back(last_);
    return numbers;
  }

 private:
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> last_of_rank_;
};

/// The common order in which process sets that overlap launch their batches on GPUs. A collective
/// occupies its GPU until all its ranks have launched it, so two ranks that launch two collectives
/// in different orders may deadlock.
///
/// World rank 0 numbers the batches and tells each rank after which batch it may launch the next
/// one. Once it has shut down or the world has lost a rank, batches of other sets of several ranks
/// fail. Any thread.
class LaunchOrder {
 public:
  /// A batch's place in the order.
  struct Ticket {
    std::uint64_t number = 0;    ///< 0: none, the batch fails
    bool is_world_lost = false;  ///< which is the reason; otherwise world rank 0 has shut down
  };

  /// `world` is a communicator of all ranks that nothing else uses.
  explicit LaunchOrder(std::unique_ptr<Communicator> world) : world_(std::move(world)) {}
  /// Abandons messages in flight and leaks their memory.
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;  // Tasks refer to it
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  /// Numbers the next batch of a process set once all its ranks have called this, and ends when it
  /// is this rank's turn to launch the batch. Collective over the set of `path`. From the call
  /// until `leave`, a rank that stalls holds up other process sets, so it runs no function of the
  /// program meanwhile. All ranks of the set get the same ticket, or none.
  Task enter(const DataPath& path, Ticket& ticket);
  /// Ends the turn: the batch has been launched or has failed.
  void leave(const Ticket& ticket);
  /// The event after the batch with peers that this rank launched last; null: there is none.
  std::shared_ptr<CUevent_st> last_launched();
  void set_last_launched(std::shared_ptr<CUevent_st> done);
  /// Call it after the loss of a rank of a set: from now on this rank waits for no turn.
  void give_up();
  /// Call it after the world has lost a rank: this rank waits for no answer of rank 0 either.
  ///
  /// @param loss which rank, and how
  void give_up_world(const std::string& loss);
  /// What `give_up_world` was told; empty if this rank knows of no loss.
  std::string world_loss();
  /// Call it once the engines of this rank have stopped: it asks no more. World rank 0 then answers
  /// until no rank asks any more; ranks that go on are told, and notice it in `serve`.
  Task close();
  /// For world rank 0: the processes of `ranks` have ended, so `close` waits for none of them.
  /// @return whether any might still have asked
  bool stop_waiting_for(const std::vector<int>& ranks);
  /// The ranks for which `close` waits.
  std::vector<int> awaited();

  /// From now on ranks may ask for numbers.
  void expect_questions() { has_questions_ = true; }
  /// On world rank 0: answers questions; on others: notices that rank 0 is about to stop that.
  /// Never blocks, and only looks at the clock if it has probed for messages recently.
  void serve();
  /// Whether this rank answers questions and has been asked within the last second: more are
  /// likely.
  bool is_in_demand() const { return Clock::now() < in_demand_until_.load(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Numbers = LaunchTickets::Numbers;
  struct Question {
    int source = 0;
    Numbers members;
    Transfer transfer;  // abandoned before the memory that it writes to is freed
  };
  struct Message {
    Numbers numbers;
    Transfer transfer;
  };

  Task ask(const std::vector<int>& members, Numbers& answer);
  bool can_ask() KOLO_REQUIRES(lock_);
  void ask_no_more() KOLO_REQUIRES(lock_);
  void tell_the_others() KOLO_REQUIRES(lock_);
  void exchange_messages() KOLO_REQUIRES(lock_);
  void answer_questions() KOLO_REQUIRES(lock_);
  bool has_question() KOLO_REQUIRES(lock_);
  bool is_turn_after(std::uint64_t previous);

  Mutex lock_;
  const std::unique_ptr<Communicator> world_ KOLO_PT_GUARDED_BY(lock_);
  std::uint64_t last_left_ KOLO_GUARDED_BY(lock_) = 0;
  std::shared_ptr<CUevent_st> last_launched_ KOLO_GUARDED_BY(lock_);
  bool is_given_up_ KOLO_GUARDED_BY(lock_) = false;
  /// All ranks learn that there is one.
  std::optional<std::string> world_loss_ KOLO_GUARDED_BY(lock_);
  bool asks_no_more_ KOLO_GUARDED_BY(lock_) = false;
  // Abandoned, if at all, together with its memory.
  std::list<Message> sending_ KOLO_GUARDED_BY(lock_);
  std::vector<Transfer> closing_ KOLO_GUARDED_BY(lock_);  // nobody waits for these
  std::atomic<bool> has_questions_{false};
  std::atomic<Clock::time_point> next_look_{};
  // On world rank 0:
  std::atomic<Clock::time_point> in_demand_until_{};
  std::unordered_set<int> have_ended_ KOLO_GUARDED_BY(lock_);  ///< the ranks that ask no more
  LaunchTickets tickets_ KOLO_GUARDED_BY(lock_);
  std::optional<Question> question_ KOLO_GUARDED_BY(lock_);  // being received
};

}  // namespace kolo::runtime
