#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/protocol/scenario.hpp"

namespace kolo::simulator {

/// Thrown when a rule of the protocol is broken.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Judges a simulation by the protocol's specification (docs/protocol.md): derives from the events
/// alone what every rank may and must see. Shares no code with the coordinator.
///
/// For every name there is one sequence of outcomes, runs and errors, the same on all ranks: a
/// rank's k-th use has the k-th outcome. A rank's `position` in it counts the uses it has had.
/// While a rank is joined, outcomes that pass count as its uses. An error that finds nothing
/// pending waits for the rank's next use.
class Oracle {
 public:
  explicit Oracle(const Scenario& scenario);

  // Inputs of a rank's coordinator.
  void submitted(int rank, runtime::UseId use, int name, int variant, Time deadline, Time now,
                 std::uint64_t exchange);
  void awaited(int rank, int name, Time now);
  void joined(int rank, runtime::UseId use, Time now, std::uint64_t exchange);
  void shut_down(int rank);
  void notified_of_loss(int rank) { at(rank).knows_of_loss = true; }

  // Its decisions. `ran_in`: the exchange whose headers it has just seen, or 0.
  void decided(int rank, const runtime::Coordinator& core,
               const runtime::Coordinator::Actions& actions, std::uint64_t ran_in, Time now);

  void died(int rank) { at(rank).is_lost = is_disturbed_ = true; }
  void froze(int rank) { at(rank).is_frozen = is_disturbed_ = true; }

  /// No more events are possible: checks that nothing is left undone.
  void finish(const std::vector<const runtime::Coordinator*>& cores) const;

  /// The exchange at which `rank` last decided.
  std::uint64_t exchange(int rank) const { return at(rank).exchange; }
  std::uint64_t outcome_count() const;

 private:
  struct Outcome {
    std::uint64_t exchange = 0;
    std::optional<Failure> error;  // none if it ran
    int variant = 0;               // the variant that ran
  };
  struct PendingUse {
    runtime::UseId use = 0;
    int variant = 0;
    Time deadline = kNever;
    bool is_awaited = false;
    std::uint64_t shown_in = 0;       // the first exchange that saw it; 0: none yet
    bool is_withdrawn = false;        // a header left it out because its deadline had passed
    bool is_reported = false;         // as stalled
    std::optional<Failure> expected;  // it takes an error that waited for it
  };
  struct Seen {  // a rank's state after it had seen an exchange's headers and run its batches
    std::uint64_t exchange = 0;
    struct Use {
      int name;
      int variant;
      bool is_expired;
    };
    std::vector<Use> pending;
    bool is_joined = false;
  };
  struct Rank {
    std::vector<std::optional<PendingUse>> pending;  // by name
    std::vector<std::size_t> position;               // by name
    std::optional<runtime::UseId> join;
    std::uint64_t join_shown = 0;
    std::uint64_t posted = 0;  // last header's exchange
    std::uint64_t exchange = 1;
    std::size_t batches = 0;
    std::size_t joins = 0;
    bool is_shutting_down = false;
    bool is_closed = false;
    bool knows_of_loss = false;
    bool is_lost = false;
    bool is_frozen = false;
    bool is_gone() const { return is_lost || is_frozen; }
    std::array<Seen, 2> seen;
  };
  struct BatchRecord {
    std::uint64_t exchange = 0;
    bool have_some_joined = false;
    std::vector<std::pair<int, int>> items;  // name, variant
  };
  struct RecordedVerdict {  // one verdict
    std::map<int, Failure> errors;
  };

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  std::pair<int, int> identify(const runtime::Request& request) const;
  const runtime::Request& request(int name, int variant) const {
    return scenario_.names[static_cast<std::size_t>(name)][static_cast<std::size_t>(variant)];
  }
  /// For each variant, the ranks that had `name` pending when they had seen the exchange.
  std::map<int, std::vector<int>> seen_variants(int name, std::uint64_t exchange) const;
  static PendingUse* pending(Rank& rank, int name) {
    auto& use = rank.pending[static_cast<std::size_t>(name)];
    return use ? &*use : nullptr;
  }
  std::vector<Outcome>& outcomes(int name) { return outcomes_[static_cast<std::size_t>(name)]; }

  void record_seen(int rank, std::uint64_t exchange, Time now);
  void check_close(int rank);

  // Outcomes (oracle_outcomes.cpp).
  void check_runs(int rank, const runtime::Coordinator::Actions& actions, std::uint64_t ran_in,
                  Time now);
  void check_item(int rank, std::uint64_t exchange, int name, int variant,
                  std::optional<runtime::UseId> use, Time now);
  void record_verdict(const runtime::Verdict& verdict);
  void pass_errors(int rank, std::uint64_t exchange);
  void check_failed(int rank, const runtime::Coordinator::Failed& failed, Time now);
  void check_join(int rank, const runtime::Coordinator::Joined& joined);
  void check_post(int rank, const runtime::Header& header, Time now);
  void check_stall(const runtime::Verdict::Stall& stall, std::uint64_t exchange);

  // The end (oracle_finish.cpp).
  void check_survivors() const;
  void check_left_overs() const;
  void check_cost(const std::vector<const runtime::Coordinator*>& cores) const;

  // Whether errors are deserved (oracle_errors.cpp).
  void check_verdict(const runtime::Verdict& verdict) const;
  void check_invalid_request(int name, const std::string& text, std::uint64_t exchange) const;
  void check_mismatch(int name, const std::string& text, std::uint64_t exchange) const;
  void check_timeout(int name, const std::string& text, std::uint64_t exchange) const;
  void check_ending_text(ErrorKind kind, const std::string& text) const;
  std::vector<int> to_world(const std::vector<int>& ranks) const;

  // Promptness (oracle_promptness.cpp).
  static std::ptrdiff_t pending_count(const Rank& rank);
  void find_due(int name, Time now);
  void ended(int rank, int name, Time now);
  void forget_due();

  [[noreturn]] void fail(int rank, const std::string& what) const;
  std::string label(int name) const;

  const Scenario& scenario_;
  Time bound_;  // for several exchanges and a negotiation
  std::vector<Rank> ranks_;
  std::vector<std::vector<Outcome>> outcomes_;  // by name
  std::vector<BatchRecord> batches_;
  std::map<std::uint64_t, RecordedVerdict> verdicts_;
  struct Due {
    std::size_t position = 0;
    Time at = kNever;
  };
  std::vector<Due> due_;                                // by name
  std::vector<std::optional<int>> last_joining_ranks_;  // of each round of joins
  bool is_disturbed_ = false;                           // a rank was lost, froze or shuts down
  std::uint64_t causes_ = 0;  // submissions, joins, deadlines: each may cost an exchange
  std::uint64_t closed_in_ = 0;
  std::size_t max_requests_ = 0;
};

}  // namespace kolo::simulator
