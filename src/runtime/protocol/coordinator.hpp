#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kolo/error.hpp"
#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/header_exchange.hpp"
#include "runtime/protocol/history.hpp"
#include "runtime/protocol/negotiation.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// Errors of uses that have failed on all ranks, but that this rank has not submitted yet: a queue
/// per name. Consecutive equal errors are kept as one with a count. Beyond `capacity` the oldest is
/// dropped: a rank that is so far behind waits for its own deadline instead.
class DeferredErrors {
 public:
  explicit DeferredErrors(std::size_t capacity = 8192) : capacity_(capacity) {}

  void add(const std::string& name, const Failure& failure);
  /// Removes and returns the error of the next use of `name`; none if that use has not failed.
  std::optional<Failure> take(const std::string& name);
  void clear();
  /// Entries held; consecutive equal errors are one.
  std::size_t size() const { return all_.size(); }

 private:
  struct DeferredError {
    std::string name;
    Failure failure;
    std::size_t uses;
  };
  using Entry = std::list<DeferredError>::iterator;
  void remove_first(std::unordered_map<std::string, std::deque<Entry>>::iterator of_name);

  std::size_t capacity_;
  std::list<DeferredError> all_;  // oldest first
  std::unordered_map<std::string, std::deque<Entry>> by_name_;
};

/// One submission of a request on this rank, numbered by the submitter.
using UseId = std::uint64_t;

/// Time since any fixed origin, real or virtual.
using Time = std::chrono::nanoseconds;
inline constexpr Time kNever = Time::max();

/// A request that this rank has submitted and that has neither run nor failed yet.
struct PendingRequest {
  UseId use = 0;
  SharedRequest request;
  std::optional<int> bit;  ///< none: unknown to the request table
  Time submitted{};
  Time deadline = kNever;
  Time stall_at = kNever;   ///< when it is reported as stalled
  bool is_awaited = false;  ///< a caller blocks on it
  bool is_expired = false;  ///< its deadline has passed
  bool is_stalled = false;  ///< and no negotiation has reported it yet; that happens once
};

/// Requests that are pending on one rank: by name, by use and by bit, with the sets and counts that
/// determine its next header. At most one request is pending under a name.
class PendingRequests {
 public:
  using ByName = std::unordered_map<std::string, PendingRequest>;

  void add(PendingRequest request);
  /// It has run or failed. `request` refers into this object and is invalid afterwards.
  void remove(const PendingRequest& request);

  bool empty() const { return by_name_.empty(); }
  ByName::const_iterator begin() const { return by_name_.begin(); }
  ByName::const_iterator end() const { return by_name_.end(); }
  /// Null if nothing is pending under that name, or under that bit.
  const PendingRequest* find(const std::string& name) const;
  const PendingRequest* at(int bit) const;
  std::optional<int> bit_of(UseId use) const;

  /// A caller blocks on `use`. Ignored if it is not pending.
  void mark_awaited(UseId use);
  /// Calls `visit(request)` for what the next negotiation must hear of: all requests with bits, and
  /// unknown ones that no report has told, or that have expired or stalled since.
  template <class Visit>
  void for_each_to_report(const Visit& visit) const {
    ready_.for_each([&](int bit) { visit(*at(bit)); });
    if (has_expired()) {
      for (const PendingRequest* const known : by_bit_) {
        if (known != nullptr && known->is_expired) visit(*known);
      }
    }
    for (const auto& [use, unknown] : unreported_) visit(*unknown);
  }
  /// That has been done.
  void mark_reported();

  /// Marks requests that have expired or stalled by `now`. Visits every request only if one is due.
  void check_timers(Time now);
  /// The earliest deadline or stall.
  Time next_timer() const { return next_timer_; }

  /// The request table has given `request` the bit `bit`.
  void assign_bit(int bit, const SharedRequest& request);
  /// The request table has evicted `bit`: a request pending under it is unknown again.
  void withdraw_bit(int bit);

  /// Known and not expired: the contents of this rank's header.
  const Bits& ready() const { return ready_; }
  /// Ready, and in no header of this rank whose exchange has ended. Requests in the header of the
  /// current exchange are still unannounced: that exchange may end without them.
  Bits unannounced() const;
  /// A header with all ready requests was posted.
  void begin_announcement();
  /// The exchange of that header has ended.
  void end_announcement();

  bool has_unknown() const { return unknown_count_ > 0; }  ///< and not expired
  bool has_unreported() const { return !unreported_.empty(); }
  bool has_expired() const { return expired_count_ > 0; }
  bool has_stalled() const { return stalled_count_ > 0; }

 private:
  void expire(PendingRequest& request);
  void index_by_bit(PendingRequest& request, int bit);
  void clear_bit(int bit);

  ByName by_name_;
  std::unordered_map<UseId, PendingRequest*> by_use_;
  std::vector<PendingRequest*> by_bit_;                // null: nothing pending under that bit
  std::map<UseId, const PendingRequest*> unreported_;  // unknown, and due in the next report
  Bits ready_;
  Bits announced_;         // of what is pending: shown in an exchange that has ended
  Bits announcing_;        // shown by the header of the current exchange
  int unknown_count_ = 0;  // not expired
  int expired_count_ = 0;
  int stalled_count_ = 0;
  Time next_timer_ = kNever;
};

/// The protocol by which the ranks of one process set agree on what to run next: the state machine
/// of one rank. Events go in, actions come out; it has no thread, clock, network or tensor.
///
/// The ranks go through numbered exchanges. In each, every rank posts one header with the requests
/// that it has ready; requests that are ready on all ranks run everywhere, in one order. A request
/// that all ranks know has a bit in a table that is the same on all ranks. An unknown request, a
/// passed deadline or a disagreement ends the exchange in a negotiation over a tree of ranks. State
/// that all ranks share decides what runs. A prediction from history decides only when a rank posts
/// its header, so a wrong prediction costs time but never correctness. docs/protocol.md states the
/// rules by the numbers used here.
///
/// Ranks count within the process set. Pass events in, then call `decide` and execute its actions.
class Coordinator {
 public:
  struct Options {
    int rank = 0;
    SetNames set{"world", {0}};
    Time to_world_clock{};     ///< from the clock of `now` to that of world rank 0's host
    int tree_width = 8;        ///< children of a rank in the negotiation tree
    Time patience{};           ///< age at which an unannounced request wakes all ranks
    Time stall_warn = kNever;  ///< age at which a request is reported as stalled; 0: never
    Time lost_after = kNever;  ///< silence at a deadline after which a rank is lost
    TableLimits table{};       ///< of known requests
    std::function<std::string()> activity{};  ///< completes "rank 3 is "; empty: unknown
    std::size_t fusion_bytes = 0;             ///< largest fused batch; 0: every request runs alone
  };

  /// Requests that run together, in this order.
  struct Batch {
    struct Item {
      SharedRequest request;
      std::optional<UseId> use;  ///< none: this rank has joined
    };
    std::vector<Item> items;
    /// Some ranks have joined: they contribute the identity to items that they have not submitted.
    bool have_some_joined = false;
    /// The rank that submitted last what the ranks waited for, and when on this rank's clock; none:
    /// unknown. For traces.
    std::optional<std::pair<int, Time>> last{};
  };

  struct Failed {
    UseId use;
    Failure failure;
  };

  struct Joined {
    UseId use;
    int last_rank;  ///< the rank that joined last; of several in one exchange, the highest
  };

  struct Actions {
    std::vector<Batch> run;                        ///< one after another
    std::vector<Failed> failed;                    ///< uses that ended in an error
    std::optional<Joined> joined;                  ///< this rank's join has completed
    std::vector<Verdict::Stall> stalls;            ///< to report, once per set
    std::optional<Header> post;                    ///< show to all ranks of the set
    std::optional<std::uint64_t> wake_up_request;  ///< ask all ranks to post this exchange's header
    std::vector<std::pair<int, ControlMessage>> send;
    bool find_silent = false;  ///< a rank does not answer: find out which and call `on_lost`
  };

  struct Counters {
    std::uint64_t exchanges = 0;
    std::uint64_t fruitless_exchanges = 0;  ///< in which nothing ran
    std::uint64_t wake_up_requests = 0;     ///< made by this rank
    std::uint64_t negotiations = 0;
  };

  explicit Coordinator(Options options);

  /// A request was submitted under a name that is not pending here. `deadline` may be kNever.
  /// `submitted`: by the program, a little earlier than `now`; for traces.
  void submit(UseId use, const Request& request, Time now, Time deadline,
              std::optional<Time> submitted = {});
  /// A caller now blocks on `use`. Unknown and completed uses are ignored.
  void wait_for(UseId use);
  /// This rank submits no operations until all ranks have joined.
  void join(UseId use);
  /// This rank leaves, which closes the set on all ranks.
  void shut_down(Leaving how = Leaving::InOrder);
  /// Some rank wants the header of `exchange` from every rank.
  void on_wake_up_request(std::uint64_t exchange);
  /// All ranks have posted the current exchange's header; `merged` combines them.
  void on_headers(const Header& merged);
  void on_message(int from, ControlMessage message);
  /// A rank died or does not answer; `how` completes "rank 3 ". Everything pending fails.
  /// `kind`: of the errors.
  void on_lost(int rank, const std::string& how, ErrorKind kind = ErrorKind::PeerLost);

  /// What to do now. Call it in every step of progress; `next_time()` is for simulations.
  Actions decide(Time now);
  Time next_time() const;

  std::uint64_t exchange() const { return exchange_.number; }
  /// This rank has posted its header of the current exchange; `on_headers` is due.
  bool awaits_headers() const { return exchange_.has_posted && !is_negotiating() && !is_closed(); }
  bool is_negotiating() const { return exchange_.negotiation.has_value(); }
  /// The protocol has ended here; submissions fail immediately.
  bool is_closed() const { return closed_.has_value(); }
  /// Completes the errors of what ends with it; call it once the protocol has ended.
  const std::string& why_closed() const { return closed_->reason; }
  /// The rank whose shutdown has closed the set.
  std::optional<int> closed_by() const { return closed_by_; }
  const Counters& counters() const { return counters_; }
  /// Of a pending request; none: unknown to the table.
  std::optional<int> bit_of(UseId use) const { return pending_.bit_of(use); }
  /// The ranks whose join this rank has seen, unless it has joined too.
  Bits joined_ahead() const { return joins_.own ? Bits{} : joins_.ranks; }

 private:
  /// The state of the current exchange.
  struct Exchange {
    struct Negotiation {
      Report report;  // of this rank and of the children that have reported
      std::vector<int> awaited_children;
      bool has_reported = false;
    };
    std::uint64_t number = 1;
    bool has_posted = false;
    bool has_requested_wake_up = false;
    std::optional<Negotiation> negotiation;
    std::vector<std::pair<int, Report>> early_reports;  // of children that are ahead
  };
  struct Joins {
    std::optional<UseId> own;  // this rank's join, until it completes
    bool is_announced = false;
    Bits ranks;  // that have shown their join; the same on all ranks, as is `last_rank`
    std::optional<int> last_rank;
  };
  struct Closed {
    ErrorKind kind;
    std::string reason;
  };

  // When this rank posts its header (coordinator.cpp).
  bool prediction_is_complete() const;
  bool has_reason_to_wake(Time now) const;
  bool wakes_after_patience(int bit) const;
  bool lacks_bits() const;
  Header make_header() const;
  void post();
  void watch_for_silence(Time now);
  Time silence_limit() const;

  void note_newest(const Header& merged, bool has_run);

  // What an exchange leads to.
  Bits conflicting(const Bits& shown) const;
  void run(Bits runnable);
  void run_batch(const Composition& composition, Bits& runnable);
  const Composition* fuse(const Bits& runnable);
  void complete_join();
  void next_exchange();
  int size() const { return static_cast<int>(options_.set.world_ranks.size()); }
  std::string rank_text(int rank) const;

  // Negotiation.
  void begin_negotiation(const Header& merged);
  Report own_report(const Header& merged) const;
  void continue_negotiation();
  void apply(const Verdict& verdict);
  void fail_name(const Verdict::NameError& error);

  // Ends.
  std::string describe_shutdown(const Header& merged) const;
  void close(ErrorKind kind, std::string reason);
  Failure closing_failure(const std::string& operation) const;
  void fail(const PendingRequest& pending, Failure failure);

  Options options_;
  Tree tree_;
  Judge judge_;  // used at the root of the tree

  // The same on all ranks at the end of each exchange.
  RequestTable table_;
  History history_;
  Bits blocked_;  // the blocked set: bits of names that were shown but could not run

  // This rank's own.
  PendingRequests pending_;
  DeferredErrors deferred_errors_;
  Joins joins_;
  std::optional<Leaving> leaving_;  // this rank shuts down
  Exchange exchange_;
  std::uint64_t highest_wake_up_request_ = 0;
  std::optional<Closed> closed_;
  std::optional<int> closed_by_;
  Time silent_since_ = kNever;
  // Submission times, Newest::kNever: none. They stay until an exchange has run something, since
  // those that ran nothing did not wait for them.
  std::int64_t newest_ = Newest::kNever;
  std::int64_t newest_shown_ = Newest::kNever;
  std::optional<std::pair<int, Time>> last_;  // of the current exchange
  Actions actions_;
  Counters counters_;
};

}  // namespace kolo::runtime
