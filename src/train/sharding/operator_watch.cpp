#include "train/sharding/operator_watch.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/ops/clone.h>
#include <ATen/record_function.h>

#include "train/tensors/parameter_storage.hpp"

namespace kolo::train {
namespace {

/// A unit that a running operator uses. An input of the operator keeps it alive.
struct Use {
  GatheredUnits* units;
  std::size_t unit;
};

/// Keeps units in use until the operator ends.
class RunningOperator final : public at::ObserverContext {
 public:
  explicit RunningOperator(std::vector<Use> uses) : uses_(std::move(uses)) {
    for (const auto& [units, unit] : uses_) units->use(unit);
  }
  ~RunningOperator() override {
    for (const auto& [units, unit] : uses_) units->end_use(unit);
  }
  RunningOperator(const RunningOperator&) = delete;  // ends once
  RunningOperator& operator=(const RunningOperator&) = delete;

 private:
  const std::vector<Use> uses_;
};

/// The storages of all units.
class WatchedStorages {
 public:
  void add(std::shared_ptr<GatheredUnits> units) {
    const std::unique_lock lock(mutex_);
    units->for_each_storage([&](std::size_t unit, const c10::Storage& storage) {
      uses_.insert_or_assign(storage.unsafeGetStorageImpl(), Use{units.get(), unit});
    });
    units_.push_back(std::move(units));
    if (callback_) return;
    callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&begin_operator)
                                          .needsInputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
  }

  void remove(const c10::Storage& storage) {
    const std::unique_lock lock(mutex_);
    const auto found = uses_.find(storage.unsafeGetStorageImpl());
    found->second.units->remove(found->second.unit, storage);
    uses_.erase(found);
  }

  /// Null if there is none.
  const Use* find(const c10::Storage& storage) const {
    const std::shared_lock lock(mutex_);
    const auto found = uses_.find(storage.unsafeGetStorageImpl());
    return found == uses_.end() ? nullptr : &found->second;
  }

  void remove_unused() {
    const std::unique_lock lock(mutex_);
    std::erase_if(units_, [&](const std::shared_ptr<GatheredUnits>& units) {
      bool is_used = false;
      units->for_each_storage([&](std::size_t, const c10::Storage& storage) {
        is_used = is_used || storage.use_count() > 1;
      });
      if (is_used) return false;
      units->for_each_storage([&](std::size_t, const c10::Storage& storage) {
        uses_.erase(storage.unsafeGetStorageImpl());
      });
      return true;
    });
    if (!units_.empty() || !callback_) return;
    at::removeCallback(*callback_);
    callback_.reset();
  }

  std::vector<Use> uses_of(c10::ArrayRef<const c10::IValue> inputs) const {
    std::vector<Use> uses;
    // Most operators use no parameter, and need neither the lock nor the table.
    if (std::none_of(inputs.begin(), inputs.end(), has_gathered)) return uses;
    const std::shared_lock lock(mutex_);
    for (const c10::IValue& input : inputs) add_uses(input, uses);
    return uses;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function);

  static bool has_gathered(const c10::IValue& input) {
    if (input.isTensor()) return is_gathered_on_use(input.toTensor());
    if (!input.isList()) return false;
    const auto elements = input.toListRef();
    return std::any_of(elements.begin(), elements.end(), has_gathered);
  }

  void add_uses(const c10::IValue& input, std::vector<Use>& uses) const {
    if (input.isTensor()) {
      const at::Tensor& tensor = input.toTensor();
      if (!tensor.defined() || !tensor.has_storage()) return;
      const auto found = uses_.find(tensor.storage().unsafeGetStorageImpl());
      if (found != uses_.end()) uses.push_back(found->second);
    } else if (input.isList()) {
      for (const c10::IValue& element : input.toListRef()) add_uses(element, uses);
    }
  }

  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Use> uses_;
  std::vector<std::shared_ptr<GatheredUnits>> units_;
  std::optional<at::CallbackHandle> callback_;
};

WatchedStorages& watched() {
  static auto& storages = *new WatchedStorages;  // operators may run until the process ends
  return storages;
}

std::unique_ptr<at::ObserverContext> WatchedStorages::begin_operator(
    const at::RecordFunction& function) {
  std::vector<Use> uses = watched().uses_of(function.inputs());
  if (uses.empty()) return nullptr;
  return std::make_unique<RunningOperator>(std::move(uses));
}

/// The elements of [offset, offset + bytes) of the part that the shard has.
ElementRange overlap(const GatheredUnits::Part& part, std::size_t offset, std::size_t bytes) {
  const std::size_t begin = std::max(offset, part.begin);
  const std::size_t end = std::min(offset + bytes, part.begin + part.shard.nbytes());
  if (begin >= end) return {0, part.shard.narrow(0, 0, 0)};
  const auto element = static_cast<std::size_t>(part.shard.element_size());
  const auto elements = [&](std::size_t size) { return static_cast<std::int64_t>(size / element); };
  return {elements(begin - offset),
          part.shard.narrow(0, elements(begin - part.begin), elements(end - begin))};
}

}  // namespace

const GatheredUnits* units_of(const c10::Storage& parameter) {
  const Use* const use = watched().find(parameter);
  return use != nullptr ? use->units : nullptr;
}

ElementRange own_elements(const c10::Storage& parameter) {
  const Use* const use = watched().find(parameter);
  for (const GatheredUnits::Part& part : use->units->units()[use->unit].parts) {
    for (const GatheredUnits::Member& member : part.members) {
      if (member.storage.unsafeGetStorageImpl() != parameter.unsafeGetStorageImpl()) continue;
      return overlap(part, member.offset, parameter.nbytes());
    }
  }
  return {};  // all watched storages are in units
}

void watch_operators(std::shared_ptr<GatheredUnits> units) { watched().add(std::move(units)); }

void take_from_units(const at::Tensor& parameter) {
  // Of the whole storage: the parameter may be a view.
  const auto count = static_cast<std::int64_t>(parameter.storage().nbytes()) /
                     static_cast<std::int64_t>(parameter.element_size());
  const at::Tensor own = at::clone(parameter.variable_data().as_strided({count}, {1}, 0));
  watched().remove(parameter.storage());
  set_elements(parameter.storage(),
               own.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr()));
}

void forget_unused_units() { watched().remove_unused(); }

}  // namespace kolo::train
