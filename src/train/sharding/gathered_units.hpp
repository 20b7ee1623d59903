#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include "base/mutex.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/shared_buffer.hpp"
#include "kolo/tensor_view.hpp"
#include "kolo/torch/program_stream.hpp"
#include "train/buckets/bucket_plan.hpp"

namespace kolo::train {

/// Shared by the units of an optimizer: the numbers of their collectives, so that a rank that calls
/// a different one causes an immediate error, and callbacks to the optimizer.
class UnitCalls {
 public:
  explicit UnitCalls(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Options of the next collective, whose purpose ranks compare.
  OperationOptions next(OperationOptions options, std::string purpose) {
    options.name = prefix_ + "." + std::to_string(number_++ % kNumbers);
    options.purpose = std::move(purpose);
    return options;
  }
  /// A step has ended: the next one reuses the names.
  void restart() { number_ = 0; }

  // Empty once the optimizer is destroyed.
  /// Called before a unit of the reducer is gathered for this rank's own use.
  std::function<void(const std::string& reducer, std::size_t unit, std::size_t slot)> before_gather;
  /// Called on all ranks after a mismatch: whether it happened because some ranks have joined. The
  /// collective is then repeated, and before_gather() announces it to them.
  std::function<bool(const MismatchError&)> learn_joined;

 private:
  static constexpr std::size_t kNumbers = 4096;  // bounds the number of names, which are remembered

  const std::string prefix_;
  std::size_t number_ = 0;
};

/// Which parameters are gathered together.
struct UnitPlan {
  std::vector<std::size_t> unit_of;  ///< of each parameter
  std::vector<std::string> names;    ///< of each unit, for error texts
  bool keeps_gathered = false;       ///< until step()
};

struct UnitMember {
  std::string name;  ///< "blocks.3.attention.weight"
  std::size_t size_bytes;
  std::size_t place;                       ///< index in the model, whose order is that of use
  int group = PlannedParameter::kNoGroup;  ///< its parameters form a unit
};

/// Fills units with whole modules, in the order of the model, up to `unit_bytes`; a larger module
/// becomes a unit of its own. Parameters belong to the same module if their names differ only in
/// the last part.
UnitPlan plan_units(const std::vector<UnitMember>& members, std::size_t unit_bytes);

/// Memory for gathered units: a fixed number of equal slots, and additional ones while an operator
/// needs more units. The ranks of a node may share the fixed slots; additional ones belong to one
/// rank.
class UnitSlots {
 public:
  struct Slot {
    std::shared_ptr<c10::DataPtr> memory;  ///< a gather may outlive the slots
    std::optional<std::size_t> unit{};
    std::vector<ProgramStream> streams;  ///< of the last gather, then those of operators since

    std::byte* data() const { return static_cast<std::byte*>(memory->get()); }
    /// An operator on the stream uses the slot, after its gather and before its next one.
    void use_on(const ProgramStream& stream);
    /// Makes the current stream wait for all uses so far.
    void await_uses() const;
  };

  /// `of_node`, if any, has room for `count` slots, in the same order on all ranks of the node.
  UnitSlots(std::size_t count, std::size_t slot_bytes, const c10::Device& device,
            std::optional<SharedBuffer> of_node = std::nullopt);

  const c10::Device& device() const { return device_; }
  std::size_t size() const { return slots_.size(); }
  Slot& operator[](std::size_t slot) { return slots_[slot]; }
  auto begin() const { return slots_.begin(); }
  auto end() const { return slots_.end(); }

  /// Whether the ranks of a node share the slot.
  bool is_of_node(std::size_t slot) const { return of_node_ && slot < count_; }
  bool is_added(std::size_t slot) const { return slot >= count_; }
  /// Returns the new slot, the last one.
  std::size_t add();
  /// Removes an added slot; the last one gets its number.
  void remove(std::size_t slot);

  /// Bytes of the fixed slots, and of the additional ones.
  std::size_t permanent_bytes() const { return count_ * slot_bytes_; }
  std::size_t added_bytes() const { return (slots_.size() - count_) * slot_bytes_; }

 private:
  std::shared_ptr<c10::DataPtr> make_memory() const;

  std::size_t count_;
  std::size_t slot_bytes_;
  c10::Device device_;
  std::optional<SharedBuffer> of_node_;
  std::vector<Slot> slots_;
};

/// The order in which a step uses units, learnt from the previous step.
class UseOrder {
 public:
  /// A unit is used that differs from the last one.
  void use(std::size_t unit);
  /// The step has ended: the next one is expected to have the same order.
  void end_step();

  /// The units that are expected next, in order; empty in the first step, and once a step differs
  /// from the last.
  std::span<const std::size_t> ahead() const;
  /// How many uses of other units come before the next one of `unit`; kNever if none is expected.
  std::size_t uses_until(std::size_t unit) const;
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

 private:
  std::vector<std::size_t> expected_;
  std::vector<std::size_t> current_;
  std::size_t position_ = 0;  // in expected_
  bool is_as_expected_ = true;
};

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

  /// Releases all units, which belong to the optimizer's reducer `reducer` and fit into each slot.
  /// `options` has the set and keeps the shards alive.
  GatheredUnits(std::vector<Unit> units, UnitSlots slots, OperationOptions options,
                std::string reducer, std::shared_ptr<UnitCalls> calls);
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
  void gather_for_others(std::size_t unit, std::size_t slot);

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
  /// How many ranks share the slots. Takes no lock, since that does not change.
  int sharers() const KOLO_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct State {
    std::optional<std::size_t> slot;
    std::optional<Handle> gather;  // in flight
    int pins = 0;
    std::uint64_t last_use = 0;
  };
  void gather(std::size_t unit, std::size_t slot) KOLO_REQUIRES(mutex_);
  TensorView input_of(const Part& part, std::byte* place) const KOLO_REQUIRES(mutex_);
  void complete(std::size_t unit) KOLO_REQUIRES(mutex_);
  void complete_all() KOLO_REQUIRES(mutex_);
  void release(std::size_t unit) KOLO_REQUIRES(mutex_);
  void release_units() KOLO_REQUIRES(mutex_);
  void prefetch() KOLO_REQUIRES(mutex_);
  std::size_t make_room() KOLO_REQUIRES(mutex_);
  void remove_slot(std::size_t slot) KOLO_REQUIRES(mutex_);
  std::optional<std::size_t> find_slot(std::size_t min_uses_until) KOLO_REQUIRES(mutex_);
  void fail() noexcept KOLO_REQUIRES(mutex_);

  std::vector<Unit> units_;
  const OperationOptions options_;
  const std::shared_ptr<ProcessSet> set_;  // outlives its Runtime
  const std::string reducer_;
  const std::shared_ptr<UnitCalls> calls_;

  mutable Mutex mutex_;
  std::vector<State> states_ KOLO_GUARDED_BY(mutex_);
  UnitSlots slots_ KOLO_GUARDED_BY(mutex_);
  UseOrder order_ KOLO_GUARDED_BY(mutex_);
  std::optional<std::size_t> last_used_ KOLO_GUARDED_BY(mutex_);
  std::uint64_t uses_ KOLO_GUARDED_BY(mutex_) = 0;
  bool is_paused_ KOLO_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ KOLO_GUARDED_BY(mutex_);
};

}  // namespace kolo::train
