#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kolo/error.hpp"
#include "runtime/protocol/deferred_errors.hpp"
#include "runtime/protocol/header.hpp"
#include "runtime/protocol/history.hpp"
#include "runtime/protocol/negotiation.hpp"
#include "runtime/protocol/request.hpp"
#include "runtime/protocol/request_table.hpp"
#include "runtime/protocol/tree.hpp"

namespace kolo::runtime {

/// One submission of a request on this rank, numbered by whoever submits.
using UseId = std::uint64_t;

/// Time since any fixed origin, real or virtual.
using Time = std::chrono::nanoseconds;
inline constexpr Time kNever = Time::max();

/// The protocol by which the ranks of one process set agree on what to run next: a state machine of
/// one rank. Events go in, actions come out; no thread, clock, network or tensor inside.
///
/// The ranks go through numbered exchanges. In each, every rank posts one header that shows what it
/// has ready, and what all have ready runs everywhere, in one order. A request that all ranks know
/// has a bit in a table that is the same on all; an unknown one, a passed deadline or a
/// disagreement makes the exchange end in a negotiation over a tree of ranks. What runs is decided
/// by state that all ranks share; a prediction from history decides only when a header is posted,
/// so a wrong one costs time and never correctness. docs/protocol.md states the rules by the
/// numbers used here.
///
/// Ranks count within the process set. Pass events in, then call `decide` and carry its actions
/// out.
class Coordinator {
 public:
  struct Options {
    int rank = 0;
    SetNames set{"world", {0}};
    int tree_width = 8;            ///< children of a rank in the negotiation tree
    Time patience{};               ///< age at which news asks for an exchange
    Time stall_warn = kNever;      ///< age at which a request asks who is missing; 0: never
    Time lost_after = kNever;      ///< silence past a deadline after which a rank is lost
    TableLimits table{};           ///< of known requests
    std::size_t fusion_bytes = 0;  ///< largest fused batch; 0: every request runs alone
  };

  /// Requests that run together, in this order.
  struct Batch {
    struct Item {
      std::shared_ptr<const Request> request;
      std::optional<UseId> use;  ///< none: this rank has joined
    };
    std::vector<Item> items;
    /// Some ranks have joined: those that do not have an item pending contribute its identity.
    bool have_some_joined = false;
  };

  struct Failed {
    UseId use;
    Failure failure;
  };

  struct Joined {
    UseId use;
    int last_rank;  ///< that joined last; of several in one exchange the highest
  };

  struct Actions {
    std::vector<Batch> run;                        ///< one after another
    std::vector<Failed> failed;                    ///< uses that ended in an error
    std::optional<Joined> joined;                  ///< this rank's join has completed
    std::vector<Verdict::Stall> stalls;            ///< to be reported, once for the set
    std::optional<Header> post;                    ///< show to all ranks of the set
    std::optional<std::uint64_t> wake_up_request;  ///< raise this rank's ask word to this exchange
    std::vector<std::pair<int, ControlMessage>> send;
    bool find_silent = false;  ///< somebody does not answer: find out who and call `on_lost`
  };

  struct Counters {
    std::uint64_t exchanges = 0;
    std::uint64_t fruitless_exchanges = 0;  ///< in which nothing ran
    std::uint64_t wake_up_requests = 0;     ///< raised by this rank
    std::uint64_t negotiations = 0;
  };

  explicit Coordinator(Options options);

  /// A request was submitted under a name that is not pending here. `deadline` may be kNever.
  void submit(UseId use, const Request& request, Time now, Time deadline);
  /// A caller now blocks on `use`. Unknown or ended uses are ignored.
  void wait_for(UseId use);
  /// This rank has no more of its own to submit until all ranks have joined.
  void join(UseId use);
  /// This rank leaves; the set is closed on all ranks.
  void shut_down();
  /// Some rank's ask word stands at `exchange`.
  void on_wake_up_request(std::uint64_t exchange);
  /// All ranks have posted the current exchange's header; this is all of them merged.
  void on_headers(const Header& merged);
  void on_message(int from, ControlMessage message);
  /// A rank died or does not answer; `how` completes "rank 3 ". Everything pending fails.
  void on_lost(int rank, const std::string& how);

  /// What to do now. Call it after events, and when `next_time()` has come.
  Actions decide(Time now);
  Time next_time() const;

  std::uint64_t exchange() const { return exchange_; }
  /// This rank has posted its header of the current exchange; `on_headers` is due.
  bool awaits_headers() const { return has_posted_ && !negotiation_ && !closed_; }
  bool is_negotiating() const { return negotiation_.has_value(); }
  /// The protocol has ended here; submissions fail at once.
  bool is_closed() const { return closed_.has_value(); }
  const Counters& counters() const { return counters_; }

 private:
  struct Pending {
    std::shared_ptr<const Request> request;
    UseId use = 0;
    int bit = -1;  // -1: unknown to the table
    Time submitted{};
    Time deadline = kNever;
    Time stall_at = kNever;
    bool is_awaited = false;  // by a caller
    bool is_expired = false;
    bool is_stalled = false;    // and not reported yet, which happens once
    bool was_reported = false;  // in a negotiation
  };

  // When a header is posted.
  void look_at_clock(Time now);
  void expire(Pending& pending);
  bool prediction_is_complete() const;
  bool has_cause(Time now) const;
  bool counts_patience(int bit) const;
  bool lacks_bits() const;
  void count_unknown(const Pending& pending, int by);
  Header make_header() const;
  void post();
  void watch_for_silence(Time now);
  Time silence_limit() const;

  // What an exchange leads to (coordinator_outcome.cpp).
  Bits conflicting(const Bits& shown) const;
  void run(Bits runnable);
  void run_batch(History::Composition composition, Bits& runnable);
  History::Composition fuse(const Bits& runnable);
  void complete_join();
  void next_exchange();
  void begin_negotiation();
  Report own_report() const;
  void continue_negotiation();
  void apply(const Verdict& verdict);
  void evict(int bit);
  void introduce(const Verdict::Addition& addition);
  void raise(const Verdict::NameError& error);
  void close(ErrorKind kind, std::string reason);
  Failure closing_failure(const std::string& operation) const;
  void fail(Pending& pending, Failure failure);
  void end(Pending& pending);

  Options options_;
  Tree tree_;

  // The same on all ranks at the end of each exchange.
  std::uint64_t exchange_ = 1;
  RequestTable table_;
  History history_;
  Bits blocked_;  // W: bits of the names that were shown but could not run
  Bits joined_;   // the ranks that have shown their join
  int last_joining_rank_ = Header::kNoRank;

  // This rank's own.
  std::unordered_map<std::string, Pending> pending_;
  std::unordered_map<UseId, Pending*> by_use_;
  std::vector<Pending*> by_bit_;  // null: nothing pending under that bit
  Bits ready_;                    // pending, known, not expired
  Bits announced_;   // of what is pending, what this rank showed in an exchange that has ended
  Bits announcing_;  // and what the header of the current one shows
  int unknown_count_ = 0;     // pending, unknown, not expired
  int unreported_count_ = 0;  // of these, what no negotiation has looked at
  int expired_count_ = 0;
  int stalled_count_ = 0;
  DeferredErrors deferred_errors_;
  std::optional<UseId> join_;
  bool join_is_announced_ = false;
  bool is_shutting_down_ = false;

  // The current exchange.
  bool has_posted_ = false;
  bool has_requested_wake_up_ = false;
  std::uint64_t highest_wake_up_request_ = 0;
  struct Negotiation {
    Report report;
    std::vector<int> awaited_children;
    bool has_reported = false;
  };
  std::optional<Negotiation> negotiation_;
  std::vector<std::pair<int, Report>> early_reports_;  // of children that are ahead

  struct Closed {
    ErrorKind kind;
    std::string reason;
  };
  std::optional<Closed> closed_;
  Time next_clock_ = kNever;  // earliest deadline or stall of what is pending
  Time silent_since_ = kNever;
  Actions actions_;
  Counters counters_;
};

}  // namespace kolo::runtime
