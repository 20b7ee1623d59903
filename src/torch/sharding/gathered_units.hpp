#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "kolo/collectives.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/tensor_view.hpp"
#include "torch/sharding/unit_calls.hpp"
#include "torch/sharding/unit_slots.hpp"
#include "torch/sharding/use_order.hpp"

namespace kolo::tensors {

/// Units of sharded parameters: gathered into slots of memory when they are used, and released when
/// the slot is needed for another unit.
///
/// A parameter's storage is rebound to the slot and, on release, to nothing. All ranks must use
/// units in the same order. Their collectives are numbered, so a rank that uses another unit causes
/// an immediate error. After an error no unit can be used, and each access to a parameter throws
/// it.
///
/// The ranks of a node may share the slots. Then only gathers write to a slot, and each begins once
/// all ranks have ceased to read the slot's previous contents.
class GatheredUnits {
 public:
  struct Member {
    c10::Storage storage;  ///< kept alive: the address of a dead storage may be reused
    std::size_t offset;    ///< in the gathered part, in bytes
  };
  /// Parameters of one dtype; the ranks' shards, one after another, form the part.
  struct Part {
    at::Tensor shard;   ///< [n], this rank's; may be in CPU memory
    std::size_t begin;  ///< of the shard in the whole part, in bytes
    std::vector<Member> members;
  };
  struct Unit {
    std::string name;
    std::vector<Part> parts;
  };

  // One unit is used while the next one is gathered.
  static constexpr std::size_t kSlots = 2;

  /// The bytes of the largest unit, gathered from so many ranks.
  static std::size_t largest_bytes(const std::vector<Unit>& units, int ranks);

  /// Releases all units, which belong to the optimizer's batch `batch` and fit into each slot.
  /// `options` has the set and keeps the shards alive.
  GatheredUnits(std::vector<Unit> units, UnitSlots slots, OperationOptions options,
                std::string batch, std::shared_ptr<UnitCalls> calls);
  GatheredUnits(const GatheredUnits&) = delete;  // storages point to its slots
  GatheredUnits& operator=(const GatheredUnits&) = delete;

  const std::vector<Unit>& units() const { return units_; }
  /// Calls `visit(unit, storage)` for all parameters.
  template <class Visit>
  void for_each_storage(const Visit& visit) const {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      for (const Part& part : units_[i].parts) {
        for (const Member& member : part.members) visit(i, member.storage);
      }
    }
  }
  /// The parameter leaves its unit.
  void remove(std::size_t unit, const c10::Storage& storage);

  /// An operator begins to use the unit: blocks until it is gathered. It stays gathered until
  /// end_use(), which is called once for each use(). Collective unless it is gathered already. Does
  /// not throw, see require_usable().
  void use(std::size_t unit) noexcept;
  void end_use(std::size_t unit) noexcept;
  /// Takes part in gathering a unit that only other ranks use, into their slot.
  void take_part(std::size_t unit, std::size_t slot);

  /// Blocks until no unit is being gathered.
  void finish_gathering();
  /// Shards are about to change: releases all units.
  void release_all();
  /// While paused, nothing is gathered: operators use the memory that parameters are bound to.
  void pause(bool is_paused);
  /// The step has ended; the next one is expected to use units in the same order.
  void end_step();
  /// Ranks have used different units: releases all, and expects no order.
  void restart();

  /// Throws the error of an earlier use(), after which parameters cannot be read.
  void require_usable() const;
  /// Bytes of the slots; if a node shares them, this rank's part.
  std::size_t slot_bytes() const;
  /// How many ranks share the slots.
  int sharers() const;

 private:
  struct State {
    std::optional<std::size_t> slot;
    std::optional<Handle> gather;  // in flight
    int pins = 0;
    std::uint64_t last_use = 0;
  };
  void gather(std::size_t unit, std::size_t slot);
  TensorView input_of(const Part& part, std::byte* place) const;
  void complete(std::size_t unit);
  void complete_all();
  void release(std::size_t unit);
  void release_units();
  void prefetch();
  std::size_t make_room();
  void remove_slot(std::size_t slot);
  std::optional<std::size_t> find_slot(std::size_t min_uses_until);
  void fail() noexcept;

  std::vector<Unit> units_;
  const OperationOptions options_;
  const std::shared_ptr<ProcessSet> set_;  // outlives its Runtime
  const std::string batch_;
  const std::shared_ptr<UnitCalls> calls_;

  mutable std::mutex mutex_;  // guards the members below
  std::vector<State> states_;
  UnitSlots slots_;
  UseOrder order_;
  std::optional<std::size_t> last_used_;
  std::uint64_t uses_ = 0;
  bool is_paused_ = false;
  std::exception_ptr error_;
};

}  // namespace kolo::tensors
