#include "torch/sharding/gathered_units.hpp"

#include <algorithm>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StorageImpl.h>

#include "base/current_exception.hpp"
#include "kolo/error.hpp"
#include "torch/tensors/parameter_storage.hpp"
#include "torch/tensors/program_stream.hpp"
#include "torch/tensors/storage_access.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

/// Shards are padded, so that parts that lie one after another are aligned.
std::size_t part_bytes(const GatheredUnits::Part& part, int ranks) {
  return part.shard.nbytes() * static_cast<std::size_t>(ranks);
}

/// What access to a parameter throws while its unit is released.
std::string refusal_of(const std::string& unit) {
  return "Kolo: a parameter of the unit of '" + unit +
         "' is not in memory on this rank. With shard = full, LibTorch's operators gather what "
         "they use, but data_ptr() and torch::save do not. Call them in full_parameters() of the "
         "optimizer, or save by its save() or save_full_state().";
}

}  // namespace

GatheredUnits::GatheredUnits(std::vector<Unit> units, std::size_t slots, const c10::Device& device,
                             OperationOptions options, std::string batch,
                             std::shared_ptr<UnitCalls> calls)
    : units_(std::move(units)),
      least_slots_(std::min(slots, units_.size())),
      device_(device),
      options_(std::move(options)),
      batch_(std::move(batch)),
      calls_(std::move(calls)),
      states_(units_.size()) {
  for (const Unit& unit : units_) {
    std::size_t bytes = 0;
    for (const Part& part : unit.parts) {
      bytes += part_bytes(part, options_.process_set->size());
    }
    largest_unit_ = std::max(largest_unit_, bytes);
  }
  for (std::size_t i = 0; i < least_slots_; ++i) add_slot();
  for_each_storage([&](std::size_t unit, const c10::Storage& storage) {
    set_refusal(storage, refusal_of(units_[unit].name));
    unbind_storage(storage);
  });
}

void GatheredUnits::remove(std::size_t unit, const c10::Storage& storage) {
  const std::lock_guard lock(mutex_);
  for (Part& part : units_[unit].parts) {
    std::erase_if(part.members, [&](const Member& member) {
      return member.storage.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
    });
  }
}

// --- what operators do ---

void GatheredUnits::use(std::size_t unit) noexcept {
  const std::lock_guard lock(mutex_);
  State& state = states_[unit];
  ++state.pins;
  state.last_use = ++uses_;
  if (error_ || rests_) return;
  try {
    if (last_used_ != unit) {
      last_used_ = unit;
      order_.use(unit);
      if (!state.slot) gather(unit, make_room());
      complete(unit);
      prefetch();
    }
    use_on(ProgramStream::current(device_), slots_[*state.slot]);
  } catch (...) {
    fail();
  }
}

void GatheredUnits::end_use(std::size_t unit) noexcept {
  const std::lock_guard lock(mutex_);
  State& state = states_[unit];
  if (--state.pins > 0 || slots_.size() <= least_slots_ || error_ || !state.slot) return;
  // An operator needed more units than there are slots.
  const std::size_t slot = *state.slot;
  release(unit);
  std::swap(slots_[slot], slots_.back());
  if (slots_[slot].unit) states_[*slots_[slot].unit].slot = slot;
  slots_.pop_back();
}

void GatheredUnits::take_part(std::size_t unit) {
  const std::lock_guard lock(mutex_);
  if (!states_[unit].slot) gather(unit, make_room());
  complete(unit);
  release(unit);
}

// --- what steps do ---

void GatheredUnits::finish_gathering() {
  const std::lock_guard lock(mutex_);
  complete_all();
}

void GatheredUnits::release_all() {
  const std::lock_guard lock(mutex_);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (states_[unit].slot) release(unit);
  }
  for (const Slot& slot : slots_) {
    for (const ProgramStream& stream : slot.streams) stream.come_before_current();
  }
}

void GatheredUnits::rest(bool rests) {
  if (rests) release_all();
  const std::lock_guard lock(mutex_);
  rests_ = rests;
}

void GatheredUnits::end_step() {
  const std::lock_guard lock(mutex_);
  order_.end_step();
  last_used_.reset();
  calls_->restart();
}

void GatheredUnits::require_usable() const {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

std::size_t GatheredUnits::slot_bytes() const {
  const std::lock_guard lock(mutex_);
  return slots_.size() * largest_unit_;
}

// --- units and slots; with the lock ---

/// An operator on the stream uses the slot, after its gather and before its next one.
void GatheredUnits::use_on(const ProgramStream& stream, Slot& slot) {
  if (std::ranges::find(slot.streams, stream) != slot.streams.end()) return;
  slot.streams.front().come_before_current();
  stream.keep(*slot.memory);
  slot.streams.push_back(stream);
}

/// At most one unit is being gathered: after a mismatch, ranks then agree on what comes next.
void GatheredUnits::gather(std::size_t unit, std::size_t slot) {
  complete_all();
  if (calls_->before_gather) calls_->before_gather(batch_, unit);
  const ProgramStream current = ProgramStream::current(device_);
  for (const ProgramStream& stream : slots_[slot].streams) stream.come_before_current();
  slots_[slot].streams = {current};
  current.keep(*slots_[slot].memory);
  auto* place = static_cast<std::byte*>(slots_[slot].memory->get());
  std::vector<InputRows> rows;
  for (const Part& part : units_[unit].parts) {
    rows.push_back({input_of(part, place), [place](const auto&) { return place; }});
    place += part_bytes(part, options_.process_set->size());
  }
  OperationOptions options = calls_->next(
      options_, "gathering unit " + std::to_string(unit) + " (" + units_[unit].name + ")");
  options.stream = current.handle();
  using Owners = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  options.keep_alive = std::make_shared<Owners>(options_.keep_alive, slots_[slot].memory);
  states_[unit].slot = slot;
  slots_[slot].unit = unit;
  states_[unit].gather = grouped_allgather_async(std::move(rows), options);
}

/// This rank's shard of a part that is gathered to `place`, on the device of the units.
TensorView GatheredUnits::input_of(const Part& part, std::byte* place) const {
  if (part.shard.device().type() == device_.type()) return view_of(part.shard, options_.name);
  std::byte* const own =
      place + part.shard.nbytes() * static_cast<std::size_t>(options_.process_set->rank());
  const at::Tensor copy = at::from_blob(
      own, part.shard.sizes(), [](void*) {}, part.shard.options().device(device_), device_);
  copy.copy_(part.shard);
  return view_of(copy, options_.name);
}

/// Waits for the unit if it is being gathered, and binds its parameters to the slot.
void GatheredUnits::complete(std::size_t unit) {
  State& state = states_[unit];
  if (!state.gather) return;
  Handle handle = *std::exchange(state.gather, std::nullopt);
  try {
    handle.wait();
  } catch (const MismatchError&) {
    if (!calls_->find_joined || !calls_->find_joined()) throw;
    gather(unit, *state.slot);
    return complete(unit);
  }
  auto* place = static_cast<std::byte*>(slots_[*state.slot].memory->get());
  for (const Part& part : units_[unit].parts) {
    for (const Member& member : part.members) bind_storage(member.storage, place + member.offset);
    place += part_bytes(part, options_.process_set->size());
  }
}

void GatheredUnits::complete_all() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) complete(unit);
}

void GatheredUnits::release(std::size_t unit) {
  complete(unit);
  for (const Part& part : units_[unit].parts) {
    for (const Member& member : part.members) unbind_storage(member.storage);
  }
  slots_[*states_[unit].slot].unit.reset();
  states_[unit].slot.reset();
  if (last_used_ == unit) last_used_.reset();
  // Its cache keeps casts of parameters until the end of the autocast region.
  if (at::autocast::is_autocast_enabled(device_.type())) at::autocast::clear_cache();
}

/// Starts to gather the next unit that is expected, if that needs no unit that is used sooner.
void GatheredUnits::prefetch() {
  for (const std::size_t unit : order_.ahead()) {
    if (states_[unit].slot) continue;
    if (const auto slot = find_slot(order_.uses_until(unit))) gather(unit, *slot);
    return;
  }
}

/// A slot without a unit.
std::size_t GatheredUnits::make_room() {
  if (const auto slot = find_slot(0)) return *slot;
  add_slot();
  return slots_.size() - 1;
}

void GatheredUnits::add_slot() {
  c10::DataPtr memory = c10::GetAllocator(device_.type())->allocate(largest_unit_);
  slots_.push_back({std::make_shared<c10::DataPtr>(std::move(memory)),
                    std::nullopt,
                    {ProgramStream::current(device_)}});
}

/// Releases, if needed, the unpinned unit that will be used last, or was not used for longest; but
/// none that is expected within fewer than `least_uses_until` uses of others.
std::optional<std::size_t> GatheredUnits::find_slot(std::size_t least_uses_until) {
  std::optional<std::size_t> best;
  std::pair<std::size_t, std::uint64_t> farthest;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].unit) return slot;
    const State& state = states_[*slots_[slot].unit];
    const std::pair distance{order_.uses_until(*slots_[slot].unit), uses_ - state.last_use};
    if (state.pins > 0 || distance.first < least_uses_until) continue;
    if (!best || distance > farthest) {
      best = slot;
      farthest = distance;
    }
  }
  if (best) release(*slots_[*best].unit);
  return best;
}

/// Makes each access to a parameter throw the current exception's text. Callbacks of LibTorch must
/// not throw: it would log the exception and run the operator.
void GatheredUnits::fail() noexcept {
  error_ = std::current_exception();
  std::string reason = text_of_current_exception();
  while (reason.ends_with('.')) reason.pop_back();
  const std::string text =
      "Kolo could not gather parameters: " + reason + ". Start again from a checkpoint.";
  for_each_storage([&](std::size_t, const c10::Storage& storage) {
    set_refusal(storage, text);
    unbind_storage(storage);
  });
}

}  // namespace kolo::tensors
