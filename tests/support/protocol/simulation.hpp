#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <variant>
#include <vector>

#include "runtime/control/tree_header_exchange.hpp"
#include "support/protocol/oracle.hpp"
#include "support/protocol/simulator.hpp"
#include "support/protocol/slot_header_exchange.hpp"
#include "support/random.hpp"

namespace kolo::simulator {

/// One run of a scenario: an event queue, and for each rank its program, engine and coordinator. A
/// progress step does what runtime::Engine does in production.
class Simulation {
 public:
  Simulation(const Scenario& scenario, std::ostream* trace);
  Result run();

 private:
  enum class Kind { Call, Progress, Arrival, Store, DataDone, DataCheck, Death };
  struct Event {
    Time at;
    std::uint64_t order;
    Kind kind;
    int rank;
    int from;                                   // Arrival, Store, Death: the rank it comes from
    std::uint64_t number;                       // DataDone, DataCheck: the batch
    bool operator<(const Event& other) const {  // the earliest on top of the queue
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  using Message = std::variant<runtime::HeaderExchangeMessage, runtime::ControlMessage>;
  /// Data in transit from one rank to another, in order.
  template <class T>
  struct Channel {
    std::deque<T> in_transit;
    Time last_arrival{0};
  };
  struct Use {
    int name = -1;  // -1: a join
    bool is_done = false;
  };
  struct Order {  // from the program to the engine
    Step::Kind kind;
    runtime::UseId use;
    int variant;
    Time deadline;
  };
  struct Batch {
    std::uint64_t number;
    std::vector<runtime::UseId> uses;
    bool is_started = false;
  };
  struct Rank {
    std::unique_ptr<runtime::Coordinator> core;
    std::unique_ptr<runtime::HeaderExchange> header_exchange;
    // The program.
    std::size_t next_step = 0;
    std::vector<Use> uses;
    std::vector<std::optional<runtime::UseId>> in_flight;  // by name
    std::optional<runtime::UseId> blocked_on;
    std::optional<runtime::Coordinator::Counters> settled;
    // The engine.
    std::deque<Order> orders;
    std::deque<std::pair<int, Message>> mail;
    std::optional<runtime::LostRank> dead_peer;
    std::deque<Batch> batches;
    std::uint64_t batch_count = 0;
    Time next_progress = kNever;
    bool has_declared_loss = false;
    bool has_left = false;
    // The process.
    bool is_running = true;
    int steps = 0;
  };
  struct DataPhase {  // the state of one batch on all ranks
    int started = 0;
    bool is_broken = false;
  };

  // simulation.cpp: events
  void schedule(Time delay, Kind kind, int rank, int from = -1, std::uint64_t number = 0);
  void schedule_progress(int rank, Time at);
  void wake(int rank);
  Time delay(Time bound);
  void handle(const Event& event);
  bool survives_step(int rank);
  void inject_fault(int rank, Fault::Kind kind);
  void check_end();
  template <class T>
  void transmit(std::vector<Channel<T>>& channels, Kind kind, int from, int to, T what);
  std::size_t channel(int from, int to) const {
    return static_cast<std::size_t>(from * scenario_.ranks + to);
  }

  // simulation_rank.cpp: a rank's program and engine
  void call(int rank);
  bool execute(int rank, const Step& step);
  bool wait_for(int rank, runtime::UseId use);
  void make_progress(int rank);
  void take_orders(int rank);
  bool read_mail(int rank);
  void notice_losses(int rank);
  bool advance(int rank);
  bool carry_out(int rank, std::uint64_t ran_in);
  void declare_lost(int rank, const runtime::LostRank& lost);
  void find_silent(int rank);
  void start_data(int rank);
  void watch_data(int rank);
  void finish_data(int rank, std::uint64_t number);
  void complete(int rank, runtime::UseId use);

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const runtime::Request& request(int name, int variant) const {
    return scenario_.names[static_cast<std::size_t>(name)][static_cast<std::size_t>(variant)];
  }
  void print(int rank, const std::string& text);

  const Scenario& scenario_;
  std::ostream* trace_;
  Oracle oracle_;
  Random random_;
  SlotMemory memory_;
  std::vector<Rank> ranks_;
  std::vector<Channel<Message>> messages_;
  std::vector<Channel<Store>> stores_;
  std::vector<DataPhase> data_;
  std::vector<int> frozen_;
  std::priority_queue<Event> events_;
  std::uint64_t event_count_ = 0;
  std::uint64_t order_ = 0;
  Time now_{0};
  Time last_progress_{0};
  Time quiet_time_{};  // without progress, until stall reports alone no longer count as activity
};

}  // namespace kolo::simulator
