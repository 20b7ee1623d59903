#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/protocol/header_exchange.hpp"

namespace kolo::simulator {

/// Headers in memory that all ranks share, as in WindowHeaderExchange: two slots per rank, with
/// exchange e in slot e % 2. A reader learns of a store some time after it, and then reads whatever
/// the slot holds.
class SlotMemory {
 public:
  struct Cell {
    std::array<runtime::Header, 2> slots;
    bool has_left = false;
  };
  explicit SlotMemory(int ranks) : cells(static_cast<std::size_t>(ranks)) {}
  std::vector<Cell> cells;
};

/// What a reader learns from one store.
struct Store {
  std::uint64_t posted = 0;
  std::uint64_t wake_up_request = 0;
  std::optional<runtime::LostRank> lost;
};

class SlotHeaderExchange final : public runtime::HeaderExchange {
 public:
  using Publish = std::function<void(const Store& store)>;

  SlotHeaderExchange(int rank, SlotMemory& memory, Publish publish)
      : rank_(rank), memory_(memory), publish_(std::move(publish)), seen_(memory.cells.size()) {}

  void on_store(int from, const Store& store) {
    seen_[static_cast<std::size_t>(from)] =
        std::max(seen_[static_cast<std::size_t>(from)], store.posted);
    highest_wake_up_request_ = std::max(highest_wake_up_request_, store.wake_up_request);
    if (store.lost && !lost_) lost_ = store.lost;
  }

  void post(const runtime::Header& header) override {
    memory_.cells[static_cast<std::size_t>(rank_)].slots[header.exchange % 2] = header;
    publish({header.exchange, 0, {}});
  }
  bool has_all(std::uint64_t exchange) const {
    return std::all_of(seen_.begin(), seen_.end(), [&](auto seen) { return seen >= exchange; });
  }
  std::optional<runtime::Header> merged(std::uint64_t exchange) override {
    if (!has_all(exchange)) return std::nullopt;
    std::optional<runtime::Header> merged;
    for (const SlotMemory::Cell& cell : memory_.cells) {
      const runtime::Header& header = cell.slots[exchange % 2];
      if (header.exchange != exchange) {
        throw std::logic_error("rank " + std::to_string(rank_) + ": the header of exchange " +
                               std::to_string(exchange) + " was overwritten before it was read");
      }
      if (merged) {
        merged->merge(header);
      } else {
        merged = header;
      }
    }
    return merged;
  }
  void request_wake_up(std::uint64_t exchange) override { publish({0, exchange, {}}); }
  std::uint64_t highest_wake_up_request() override { return highest_wake_up_request_; }
  void publish_lost(const runtime::LostRank& lost) override {
    if (!lost_) publish({0, 0, lost});
  }
  std::optional<runtime::LostRank> lost() override { return lost_; }
  void leave() override { memory_.cells[static_cast<std::size_t>(rank_)].has_left = true; }
  bool has_left(int rank) override {
    return memory_.cells[static_cast<std::size_t>(rank)].has_left;
  }
  std::uint64_t bytes_shown() const override { return 0; }
  void beat() override {}
  std::vector<int> silent_ranks() override { return {}; }

 private:
  void publish(const Store& store) {
    on_store(rank_, store);
    publish_(store);
  }

  const int rank_;
  SlotMemory& memory_;
  const Publish publish_;
  std::vector<std::uint64_t> seen_;
  std::uint64_t highest_wake_up_request_ = 0;
  std::optional<runtime::LostRank> lost_;
};

}  // namespace kolo::simulator
