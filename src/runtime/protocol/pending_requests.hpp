#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

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

}  // namespace kolo::runtime
