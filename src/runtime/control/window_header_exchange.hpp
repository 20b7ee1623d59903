#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kolo/shared_window.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// A header exchange in shared memory, for ranks of one node: every rank writes its own cell and
/// reads the cells of all others, so an exchange costs one cache line each way.
///
/// A header is in slot `exchange % 2` of its rank's cell. Two slots suffice: a rank posts exchange
/// e + 2 only after it has seen all headers of e + 1, and every rank posts that one only after it
/// has read all headers of e. A damaged cell is rejected with BackendError.
class WindowHeaderExchange final : public HeaderExchange {
 public:
  /// Bytes needed at the beginning of every segment of `window`.
  static std::size_t segment_bytes();

  explicit WindowHeaderExchange(std::shared_ptr<SharedWindow> window);

  void post(const Header& header) override;
  std::optional<Header> merged(std::uint64_t exchange) override;
  int awaited(std::optional<int> bit) override;
  void request_wake_up(std::uint64_t exchange) override;
  std::uint64_t highest_wake_up_request() override;
  void publish_lost(const LostRank& lost) override;
  std::optional<LostRank> lost() override;
  void leave() override;
  bool has_left(int rank) override;
  void end() override;
  bool has_ended(int rank) override;
  std::uint64_t bytes_shown() const override { return bytes_shown_; }
  void beat() override;
  std::vector<int> silent_ranks() override;

 private:
  struct Slot;
  struct Cell;
  Cell& cell(int rank);
  Header header_of(int rank, std::uint64_t exchange);
  bool has_shown(int rank, std::optional<int> bit);
  int member(int reporter, int rank) const;
  [[noreturn]] void reject(int rank, const std::string& why) const;

  std::shared_ptr<SharedWindow> window_;
  int seen_ = 0;  // ranks below it have posted `seen_exchange_`
  std::uint64_t seen_exchange_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t bytes_shown_ = 0;
  std::vector<std::uint64_t> last_beats_;
};

}  // namespace kolo::runtime
