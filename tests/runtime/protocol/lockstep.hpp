#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/protocol/coordinator.hpp"

namespace kolo::runtime {

/// The coordinators of a few ranks, in lockstep: headers and messages are visible to the others
/// immediately. Tests number the uses. The names of what ran are listed one word per batch.
class Lockstep {
 public:
  explicit Lockstep(int ranks, Coordinator::Options options = {})
      : log_(static_cast<std::size_t>(ranks)), headers_(static_cast<std::size_t>(ranks)) {
    options.set = {"world", {}};
    for (int rank = 0; rank < ranks; ++rank) options.set.world_ranks.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      options.rank = rank;
      cores_.emplace_back(options);
    }
  }

  static Request request(const std::string& name, std::int64_t rows = 1) {
    Request made;
    made.name = name;
    made.tensors = {{DType::Float32, {rows}}};
    return made;
  }

  Coordinator& operator[](int rank) { return cores_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(cores_.size()); }

  void submit(int rank, UseId use, const std::string& name, Time deadline = kNever) {
    (*this)[rank].submit(use, request(name), now_, deadline);
  }
  void wait(int rank, UseId use) { (*this)[rank].wait_for(use); }

  /// Lets `time` pass, then runs every rank until none has anything left to do.
  void advance(Time time = Time{0}) {
    now_ += time;
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < size(); ++rank) moved |= make_progress(rank);
    }
  }

  /// Submits a use on every rank, and waits for its end.
  void run_everywhere(UseId use, const std::string& name) {
    for (int rank = 0; rank < size(); ++rank) {
      submit(rank, use, name);
      wait(rank, use);
    }
    advance();
  }

  std::string ran(int rank) const { return log(rank).ran; }
  /// The kind and text of a use's error, if any.
  std::optional<Failure> failure(int rank, UseId use) const {
    const auto found = log(rank).failed.find(use);
    if (found == log(rank).failed.end()) return std::nullopt;
    return found->second;
  }
  std::optional<Coordinator::Joined> joined(int rank) const { return log(rank).joined; }
  int posts(int rank) const { return log(rank).posts; }
  /// Items in the reports that it has sent.
  std::size_t reported(int rank) const { return log(rank).reported; }
  bool searched_for_silent(int rank) const { return log(rank).searched_for_silent; }
  const std::vector<Verdict::Stall>& stalls() const { return log(0).stalls; }
  Time now() const { return now_; }

 private:
  struct Log {
    std::string ran;
    std::map<UseId, Failure> failed;
    std::optional<Coordinator::Joined> joined;
    std::vector<Verdict::Stall> stalls;
    int posts = 0;
    std::size_t reported = 0;
    bool searched_for_silent = false;
    std::deque<std::pair<int, ControlMessage>> mail;
  };
  const Log& log(int rank) const { return log_[static_cast<std::size_t>(rank)]; }

  bool make_progress(int rank) {
    Coordinator& core = (*this)[rank];
    Log& log = log_[static_cast<std::size_t>(rank)];
    bool moved = false;
    for (; !log.mail.empty(); log.mail.pop_front(), moved = true) {
      core.on_message(log.mail.front().first, std::move(log.mail.front().second));
    }
    core.on_wake_up_request(wake_up_request_);
    moved |= carry_out(rank, core.decide(now_));
    if (!core.awaits_headers()) return moved;
    std::optional<Header> merged;
    for (const auto& slots : headers_) {
      const Header& header = slots[core.exchange() % 2];
      if (header.exchange != core.exchange()) return moved;
      if (merged) merged->merge(header);
      if (!merged) merged = header;
    }
    core.on_headers(*merged);
    return true;
  }

  bool carry_out(int rank, Coordinator::Actions actions) {
    Log& log = log_[static_cast<std::size_t>(rank)];
    for (const auto& batch : actions.run) {
      if (!log.ran.empty()) log.ran += ' ';
      for (const auto& item : batch.items) log.ran += item.request->name + (item.use ? "" : "*");
    }
    for (const auto& failed : actions.failed) log.failed[failed.use] = failed.failure;
    if (actions.joined) log.joined = actions.joined;
    for (const auto& stall : actions.stalls) log.stalls.push_back(stall);
    if (actions.post) {
      headers_[static_cast<std::size_t>(rank)][actions.post->exchange % 2] = *actions.post;
      ++log.posts;
    }
    if (actions.wake_up_request)
      wake_up_request_ = std::max(wake_up_request_, *actions.wake_up_request);
    for (auto& [to, message] : actions.send) {
      if (const auto* report = std::get_if<Report>(&message)) log.reported += report->items.size();
      log_[static_cast<std::size_t>(to)].mail.emplace_back(rank, std::move(message));
    }
    log.searched_for_silent |= actions.find_silent;
    return actions.post || actions.wake_up_request || !actions.send.empty() ||
           !actions.run.empty() || !actions.failed.empty();
  }

  std::vector<Coordinator> cores_;
  std::vector<Log> log_;
  std::vector<std::array<Header, 2>> headers_;  // two slots per rank
  std::uint64_t wake_up_request_ = 0;
  Time now_{0};
};

/// Options with a patience of 5 ms; ranks count as lost after a second.
inline Coordinator::Options patient() {
  Coordinator::Options options;
  options.patience = std::chrono::milliseconds(5);
  options.lost_after = std::chrono::milliseconds(1000);
  options.lost_in_shutdown_after = options.lost_after;
  return options;
}

/// Whether there is a failure of this kind whose text contains `part`.
inline bool has(const std::optional<Failure>& failure, ErrorKind kind, const std::string& part) {
  return failure && failure->kind == kind && failure->text.find(part) != std::string::npos;
}

}  // namespace kolo::runtime
