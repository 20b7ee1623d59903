#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "kolo/error.hpp"
#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/header_exchange.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// The requests that all ranks of a process set know, each under a bit. Only verdicts change it, so
/// it is the same on every rank at the end of each exchange. Several requests may share a name.
class RequestTable {
 public:
  /// The request's bit; none if it is unknown.
  std::optional<int> find(const Request& request) const;
  void add(int bit, SharedRequest request);
  void remove(int bit);

  const SharedRequest& at(int bit) const { return entry(bit).request; }
  /// The bits of all requests under `name`.
  Bits bits_of(const std::string& name) const;
  const Bits& all() const { return all_; }
  /// The bits of names that have several requests.
  const Bits& ambiguous() const { return ambiguous_; }
  std::size_t size() const { return size_; }
  /// The lowest free bit that is at least `from`.
  int free_bit(int from) const;

  /// The request has run.
  void touch(int bit) { by_last_run_.splice(by_last_run_.end(), by_last_run_, entry(bit).place); }
  /// The bits by the last run, or addition, the least recent first: the order of evictions.
  const std::list<int>& by_last_run() const { return by_last_run_; }

 private:
  void update_ambiguous(const std::vector<int>& bits_of_one_name);

  struct Entry {
    SharedRequest request;
    std::list<int>::iterator place;  // in by_last_run_
  };
  const Entry& entry(int bit) const { return entries_[static_cast<std::size_t>(bit)]; }
  Entry& entry(int bit) { return entries_[static_cast<std::size_t>(bit)]; }

  std::vector<Entry> entries_;
  std::list<int> by_last_run_;
  std::unordered_map<std::string, std::vector<int>> bits_of_name_;
  Bits all_;
  Bits ambiguous_;
  std::size_t size_ = 0;
};

/// The report of a rank or a subtree to its parent in a negotiation: what is pending there after
/// the exchange's batches have run, and who has joined. Of the unknown requests, it holds those
/// that no earlier report has told, and those that have expired or stalled since. Ranks count
/// within the process set; lists of ranks ascend.
struct Report {
  struct Item {
    SharedRequest request;           ///< if the table does not know it
    int bit = -1;                    ///< otherwise
    std::vector<int> ranks;          ///< on which it is pending
    std::vector<int> expired_ranks;  ///< of these, where its deadline has passed
    bool stalled = false;            ///< some rank asks who is missing

    bool operator==(const Item&) const = default;
  };
  /// What a rank does, for error texts: completes "rank 3 is ".
  struct Activity {
    int rank = 0;
    std::string text;

    bool operator==(const Activity&) const = default;
  };
  std::uint64_t exchange = 0;
  std::vector<Item> items;
  std::vector<int> joined_ranks;
  std::vector<Activity> activities{};  ///< of ranks that know, if a request has expired or stalled

  /// Adds a subtree's report of the same exchange. Each request has one item afterwards.
  void merge(const Report& other);

  bool operator==(const Report&) const = default;
};

/// The root's decision on all reports. Every rank applies it in this order: forget the evicted
/// bits, assign the added requests their bits, raise the errors, set the blocked set.
struct Verdict {
  struct Addition {
    int bit = 0;
    SharedRequest request;
    bool operator==(const Addition&) const = default;
  };
  struct NameError {
    std::string name;
    Failure failure;
    bool operator==(const NameError&) const = default;
  };
  struct Stall {
    std::string name;
    std::vector<int> waiting_ranks;
    std::vector<int> missing_ranks;
    std::string activities{};  ///< of the missing ranks, as in an error text
    bool operator==(const Stall&) const = default;
  };
  std::uint64_t exchange = 0;
  std::vector<int> evicted;
  std::vector<Addition> added;
  std::vector<NameError> errors;
  std::vector<Stall> stalls;
  std::vector<std::string> blocked;  ///< names with bits pending somewhere, without an error

  bool operator==(const Verdict&) const = default;
};

using ControlMessage = std::variant<Report, Verdict>;

/// The process set's names for error texts.
struct SetNames {
  std::string name = "world";
  std::vector<int> world_ranks;  ///< of the members, ascending
};

/// Limits of the table of known requests.
struct TableLimits {
  std::size_t capacity = 2048;  ///< beyond it, requests that are pending nowhere are evicted
  std::size_t bits = Header::kMaxBits;  ///< that a header can show: never more
};

/// The root's part in negotiations: it decides what follows from the reports of all ranks (rule 8).
///
/// An invalid request fails with InvalidArgument, two requests under one name with MismatchError,
/// an expired request with TimeoutError. The unknown requests that remain get bits. A table beyond
/// its capacity evicts requests that are pending nowhere, least recently run first. If bits run
/// out, requests that are pending on every rank come first and take the bits of some that wait for
/// a rank. The others stay unknown until bits are free: they are remembered here, so that ranks
/// need not report them in every negotiation.
class Judge {
 public:
  Judge(TableLimits limits, SetNames set) : limits_(limits), set_(std::move(set)) {}

  /// `table`: as of this exchange. The verdict must be applied to it before the next one.
  Verdict decide(Report report, const RequestTable& table);

 private:
  using ByName = std::map<std::string, Report::Item>;

  bool is_complete(const Report::Item& item) const;
  std::vector<int> missing_ranks(const Report::Item& item) const;
  std::optional<Failure> failure_of(std::vector<Report::Item> variants,
                                    const RequestTable& table) const;
  Failure timeout(const Report::Item& item, const Request& request) const;
  std::string activities_of(const std::vector<int>& ranks) const;
  void set_joined(std::vector<int> ranks);
  void remember(const std::string& name, Report::Item item);
  void recall(const std::string& name, std::vector<Report::Item>& variants);
  std::vector<int> evictions(const Bits& pending, const std::vector<int>& waiting,
                             const RequestTable& table) const;
  void assign_bits(const RequestTable& table, Verdict& verdict);

  TableLimits limits_;
  SetNames set_;
  std::vector<int> joined_ranks_;
  std::vector<Report::Activity> activities_;  // in this report
  // Unknown requests, pending on all ranks that have not joined, or not yet.
  ByName complete_;
  ByName incomplete_;
};

}  // namespace kolo::runtime
