#include "train/sharding/gathered_units.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include "base/text.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/program_stream.hpp"
#include "runtime/api/collectives.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

/// Parameters that are in the same unit.
struct Cluster {
  std::string name;
  std::size_t size_bytes = 0;
  bool is_group = false;
  std::vector<std::size_t> members;
};

std::string module_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

/// In the order of the model.
std::vector<Cluster> clusters_of(const std::vector<UnitMember>& members) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return members[i].place; });
  std::vector<Cluster> clusters;
  std::map<std::pair<int, std::string>, std::size_t> known;
  for (const std::size_t i : order) {
    const UnitMember& member = members[i];
    const bool is_group = member.group != PlannedParameter::kNoGroup;
    const std::string module = module_of(member.name);
    const auto [found, is_new] =
        known.emplace(std::pair{member.group, is_group ? "" : module}, clusters.size());
    if (is_new) clusters.push_back({module, 0, is_group, {}});
    clusters[found->second].size_bytes += member.size_bytes;
    clusters[found->second].members.push_back(i);
  }
  return clusters;
}

}  // namespace

UnitPlan plan_units(const std::vector<UnitMember>& members, std::size_t unit_bytes) {
  UnitPlan plan{std::vector<std::size_t>(members.size()), {}};
  bool is_open = false;  // the last unit may take more modules
  std::size_t used_bytes = 0;
  for (const Cluster& cluster : clusters_of(members)) {
    if (!is_open || cluster.is_group || used_bytes + cluster.size_bytes > unit_bytes) {
      plan.names.push_back(cluster.name);
      used_bytes = 0;
    }
    for (const std::size_t i : cluster.members) plan.unit_of[i] = plan.names.size() - 1;
    used_bytes += cluster.size_bytes;
    is_open = !cluster.is_group;
  }
  return plan;
}

void UnitSlots::Slot::use_on(const ProgramStream& stream) {
  if (std::ranges::find(streams, stream) != streams.end()) return;
  streams.front().order_before_current();
  stream.keep(*memory);
  streams.push_back(stream);
}

void UnitSlots::Slot::await_uses() const {
  for (const ProgramStream& stream : streams) stream.order_before_current();
}

UnitSlots::UnitSlots(std::size_t count, std::size_t slot_bytes, const c10::Device& device,
                     std::optional<SharedBuffer> of_node)
    : count_(count), slot_bytes_(slot_bytes), device_(device), of_node_(std::move(of_node)) {
  while (slots_.size() < count_) add();
}

std::size_t UnitSlots::add() {
  slots_.push_back({.memory = make_memory(), .streams = {ProgramStream::current(device_)}});
  return slots_.size() - 1;
}

void UnitSlots::remove(std::size_t slot) {
  std::swap(slots_[slot], slots_.back());
  slots_.pop_back();
}

/// The memory of the next slot.
std::shared_ptr<c10::DataPtr> UnitSlots::make_memory() const {
  if (!is_of_node(slots_.size())) {
    const c10::DeviceGuard guard(device_);  // LibTorch's allocators use the thread's current device
    return std::make_shared<c10::DataPtr>(c10::GetAllocator(device_.type())->allocate(slot_bytes_));
  }
  const auto owned = std::make_shared<std::pair<c10::DataPtr, std::shared_ptr<void>>>(
      c10::DataPtr(of_node_->data() + slots_.size() * slot_bytes_, device_), of_node_->owner());
  return {owned, &owned->first};
}

namespace {

/// Longer steps, such as an evaluation over a whole data set, are not remembered.
constexpr std::size_t kLongest = std::size_t{1} << 16;

}  // namespace

void UseOrder::use(std::size_t unit) {
  if (current_.size() < kLongest) current_.push_back(unit);
  is_as_expected_ = is_as_expected_ && position_ < expected_.size() && expected_[position_] == unit;
  if (is_as_expected_) ++position_;
}

void UseOrder::end_step() {
  expected_ = std::exchange(current_, {});
  if (expected_.size() == kLongest) expected_.clear();
  position_ = 0;
  is_as_expected_ = true;
}

std::span<const std::size_t> UseOrder::ahead() const {
  if (!is_as_expected_) return {};
  return std::span(expected_).subspan(position_);
}

std::size_t UseOrder::uses_until(std::size_t unit) const {
  const auto units = ahead();
  const auto found = std::ranges::find(units, unit);
  return found == units.end() ? kNever : static_cast<std::size_t>(found - units.begin());
}

namespace {

/// The bytes of the whole part. Shards are padded, so that consecutive parts are aligned.
std::size_t part_bytes(const GatheredUnits::Part& part, int ranks) {
  return part.shard.nbytes() * static_cast<std::size_t>(ranks);
}

/// The error of accesses to a parameter while its unit is released.
std::string refusal_of(const std::string& unit) {
  return "Kolo: a parameter of the unit of '" + unit +
         "' is not in memory on this rank. With shard = full, LibTorch's operators gather what "
         "they use, but data_ptr() and torch::save do not. Call them in full_parameters() of the "
         "optimizer, or save by its save() or save_full_state().";
}

}  // namespace

std::size_t GatheredUnits::largest_bytes(const std::vector<Unit>& units, int ranks) {
  std::size_t largest = 0;
  for (const Unit& unit : units) {
    std::size_t bytes = 0;
    for (const Part& part : unit.parts) bytes += part_bytes(part, ranks);
    largest = std::max(largest, bytes);
  }
  return largest;
}

GatheredUnits::GatheredUnits(std::vector<Unit> units, UnitSlots slots, OperationOptions options,
                             std::string reducer, std::shared_ptr<UnitCalls> calls)
    : units_(std::move(units)),
      options_(std::move(options)),
      set_(options_.process_set->shared_from_this()),
      reducer_(std::move(reducer)),
      calls_(std::move(calls)),
      states_(units_.size()),
      slots_(std::move(slots)) {
  for_each_storage([&](std::size_t unit, const c10::Storage& storage) {
    set_refusal(storage, refusal_of(units_[unit].name));
    unbind_storage(storage);
  });
}

void GatheredUnits::remove(std::size_t unit, const c10::Storage& storage) {
  const Lock lock(mutex_);
  for (Part& part : units_[unit].parts) {
    std::erase_if(part.members, [&](const Member& member) {
      return member.storage.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
    });
  }
}

// --- called by operators ---

void GatheredUnits::use(std::size_t unit) noexcept {
  const Lock lock(mutex_);
  State& state = states_[unit];
  ++state.pins;
  state.last_use = ++uses_;
  if (error_ || is_paused_) return;
  try {
    if (last_used_ != unit) {
      last_used_ = unit;
      order_.use(unit);
      if (!state.slot) gather(unit, make_room());
      complete(unit);
      prefetch();
    }
    slots_[*state.slot].use_on(ProgramStream::current(slots_.device()));
  } catch (...) {
    fail();
  }
}

void GatheredUnits::end_use(std::size_t unit) noexcept {
  const Lock lock(mutex_);
  State& state = states_[unit];
  if (--state.pins > 0 || error_ || !state.slot || !slots_.is_added(*state.slot)) return;
  remove_slot(*state.slot);
}

void GatheredUnits::gather_for_others(std::size_t unit, std::size_t slot) {
  const Lock lock(mutex_);
  const bool is_added = slots_.is_added(slot);
  if (is_added) slot = slots_.add();  // added slots are private to a rank
  if (slots_[slot].unit) release(*slots_[slot].unit);
  gather(unit, slot);
  release(unit);
  if (is_added) slots_.remove(slot);
}

// --- called by steps ---

void GatheredUnits::finish_gathering() {
  const Lock lock(mutex_);
  complete_all();
}

void GatheredUnits::release_all() {
  const Lock lock(mutex_);
  release_units();
}

void GatheredUnits::pause(bool is_paused) {
  if (is_paused) release_all();
  const Lock lock(mutex_);
  is_paused_ = is_paused;
}

void GatheredUnits::end_step() {
  const Lock lock(mutex_);
  order_.end_step();
  last_used_.reset();
  calls_->restart();
}

void GatheredUnits::restart() {
  const Lock lock(mutex_);
  release_units();
  order_ = {};
}

void GatheredUnits::require_usable() const {
  const Lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

std::size_t GatheredUnits::slot_bytes() const {
  const Lock lock(mutex_);
  return slots_.permanent_bytes() / static_cast<std::size_t>(sharers()) + slots_.added_bytes();
}

int GatheredUnits::sharers() const {
  return slots_.is_of_node(0) ? set_->runtime().local_size() : 1;
}

// --- units and slots ---

/// At most one unit is being gathered, so that ranks agree on the next one after a mismatch.
void GatheredUnits::gather(std::size_t unit, std::size_t slot) {
  complete_all();
  if (calls_->before_gather) calls_->before_gather(reducer_, unit, slot);
  const ProgramStream current = ProgramStream::current(slots_.device());
  slots_[slot].await_uses();
  slots_[slot].streams = {current};
  current.keep(*slots_[slot].memory);
  std::byte* place = slots_[slot].data();
  std::vector<InputAndGathered> parts;
  for (const Part& part : units_[unit].parts) {
    TensorView shard = input_of(part, place);
    shard.shape.insert(shard.shape.begin(), 1);  // one row from each rank
    parts.push_back({std::move(shard), place});
    place += part_bytes(part, set_->size());
  }
  std::vector<std::int64_t> rows(static_cast<std::size_t>(set_->size()), 1);
  std::string purpose = "gathering unit " + std::to_string(unit) + " (" + units_[unit].name + ")";
  if (slots_.is_of_node(slot)) purpose += " into slot " + std::to_string(slot);
  OperationOptions options = calls_->next(options_, std::move(purpose));
  options.stream = current.handle();
  using Owners = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  options.keep_alive = std::make_shared<Owners>(options_.keep_alive, slots_[slot].memory);
  states_[unit].slot = slot;
  slots_[slot].unit = unit;
  const auto outputs =
      slots_.is_of_node(slot) ? runtime::Outputs::PerNode : runtime::Outputs::PerRank;
  states_[unit].gather = submit(runtime::make_allgather(parts, std::move(rows), outputs, options));
}

/// This rank's shard of a part that is gathered to `place`. A shard on another device is first
/// copied to its position there.
TensorView GatheredUnits::input_of(const Part& part, std::byte* place) const {
  const c10::Device& device = slots_.device();
  if (part.shard.device().type() == device.type()) return view_of(part.shard, options_.name);
  const at::Tensor copy = at::from_blob(
      place + part.begin, part.shard.sizes(), [](void*) {}, part.shard.options().device(device),
      device);
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
  } catch (const MismatchError& error) {
    if (!calls_->learn_joined || !calls_->learn_joined(error)) throw;
    gather(unit, *state.slot);
    return complete(unit);
  }
  std::byte* place = slots_[*state.slot].data();
  for (const Part& part : units_[unit].parts) {
    for (const Member& member : part.members) bind_storage(member.storage, place + member.offset);
    place += part_bytes(part, set_->size());
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
  // Autocast's cache keeps casts of parameters until the end of the autocast region.
  if (at::autocast::is_autocast_enabled(slots_.device().type())) at::autocast::clear_cache();
}

void GatheredUnits::release_units() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (states_[unit].slot) release(unit);
  }
  for (const UnitSlots::Slot& slot : slots_) slot.await_uses();
}

/// Prefetches the next expected unit, if that releases no unit that is used sooner.
void GatheredUnits::prefetch() {
  for (const std::size_t unit : order_.ahead()) {
    if (states_[unit].slot) continue;
    if (const auto slot = find_slot(order_.uses_until(unit))) gather(unit, *slot);
    return;
  }
}

/// Returns a slot without a unit, adding one if necessary.
std::size_t GatheredUnits::make_room() {
  if (const auto slot = find_slot(0)) return *slot;
  return slots_.add();
}

/// Removes a slot that only one operator needed, and releases its unit.
void GatheredUnits::remove_slot(std::size_t slot) {
  release(*slots_[slot].unit);
  slots_.remove(slot);
  if (slot < slots_.size()) states_[*slots_[slot].unit].slot = slot;
}

/// Returns a slot without a unit. May release an unpinned unit for it: the one whose next use is
/// farthest away or, if none is expected, the least recently used; but none that is expected within
/// fewer than `min_uses_until` uses of others.
std::optional<std::size_t> GatheredUnits::find_slot(std::size_t min_uses_until) {
  std::optional<std::size_t> best;
  std::pair<std::size_t, std::uint64_t> farthest;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].unit) return slot;
    const State& state = states_[*slots_[slot].unit];
    const std::pair distance{order_.uses_until(*slots_[slot].unit), uses_ - state.last_use};
    if (state.pins > 0 || distance.first < min_uses_until) continue;
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

}  // namespace kolo::train
