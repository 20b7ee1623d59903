#include "train/wrapped/options.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <tuple>
#include <typeinfo>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "train/wrapped/libtorch_optimizer.hpp"

namespace kolo::train {
namespace {

// --- LibTorch's classes ---

using torch::optim::OptimizerOptions;

std::vector<double> to_values(double value) { return {value}; }
std::vector<double> to_values(const std::tuple<double, double>& pair) {
  return {std::get<0>(pair), std::get<1>(pair)};
}

void from_values(const std::vector<double>& values, double& target) { target = values[0]; }
void from_values(const std::vector<double>& values, bool& target) { target = values[0] != 0.0; }
void from_values(const std::vector<double>& values, std::tuple<double, double>& target) {
  target = {values[0], values[1]};
}

// The options of each LibTorch class: calls `visit(name, reference)`.
template <class Visit>
void visit_fields(torch::optim::SGDOptions& options, Visit visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}
template <class Options, class Visit>
  requires std::same_as<Options, torch::optim::AdamOptions> ||
           std::same_as<Options, torch::optim::AdamWOptions>
void visit_fields(Options& options, Visit visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}
template <class Visit>
void visit_fields(torch::optim::RMSpropOptions& options, Visit visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}
template <class Visit>
void visit_fields(torch::optim::AdagradOptions& options, Visit visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

/// Visits the options of a LibTorch class; returns whether they are of one.
template <class Visit>
bool visit_known(OptimizerOptions& options, Visit visit) {
  return visit_libtorch_classes([&]<class Class>(Class) {
    auto* const known = dynamic_cast<typename Class::Options*>(&options);
    if (known != nullptr) visit_fields(*known, visit);
    return known != nullptr;
  });
}

// --- other classes ---

/// The options as values of an archive.
struct ArchivedOption {
  std::string name;
  c10::IValue value;
};

std::vector<ArchivedOption> read_archived(const OptimizerOptions& options) {
  std::vector<ArchivedOption> all;
  if (typeid(options) == typeid(OptimizerOptions)) return all;  // the base class has none
  torch::serialize::OutputArchive written;
  options.serialize(written);
  torch::serialize::InputArchive archive = to_input(written);
  for (const std::string& key : archive.keys()) {
    all.push_back({key, {}});
    archive.read(key, all.back().value);
  }
  return all;
}

void write_archived(OptimizerOptions& options, const std::vector<ArchivedOption>& all) {
  torch::serialize::OutputArchive written;
  for (const ArchivedOption& option : all) written.write(option.name, option.value);
  torch::serialize::InputArchive archive = to_input(written);
  options.serialize(archive);
}

/// Appends the numbers of a value; returns whether it consists of numbers.
bool append_numbers(const c10::IValue& value, std::vector<double>& numbers) {
  if (value.isDouble() || value.isInt() || value.isBool()) {
    numbers.push_back(value.isBool() ? static_cast<double>(value.toBool())
                                     : value.toScalar().toDouble());
    return true;
  }
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      if (!append_numbers(element, numbers)) return false;
    }
    return true;
  }
  if (!value.isList()) return false;
  for (const c10::IValue& element : value.toListRef()) {
    if (!append_numbers(element, numbers)) return false;
  }
  return true;
}

/// A value like `value`, with the next numbers, which it removes.
c10::IValue with_numbers(const c10::IValue& value, std::span<const double>& numbers) {
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      elements.push_back(with_numbers(element, numbers));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    c10::List<c10::IValue> elements = value.toList().copy();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      elements.set(i, with_numbers(elements.get(i), numbers));
    }
    return elements;
  }
  const double number = numbers.front();
  numbers = numbers.subspan(1);
  if (value.isBool()) return number != 0.0;
  if (value.isInt()) return static_cast<std::int64_t>(number);
  return number;
}

}  // namespace

std::string problem_with_options(const OptimizerOptions& options) {
  if (dynamic_cast<const NamedOptions*>(&options) != nullptr) return {};
  const auto copy = options.clone();
  if (visit_known(*copy, [](const char*, const auto&) {})) return {};
  const std::string where = "the options of class " + c10::demangle(typeid(options).name());
  try {
    const std::vector<ArchivedOption> all = read_archived(options);
    for (const ArchivedOption& option : all) {
      std::vector<double> numbers;
      if (append_numbers(option.value, numbers)) continue;
      return where + " have '" + option.name +
             "', which is neither a number nor a list of numbers, so that changes of it cannot be "
             "followed. Keep it in the optimizer.";
    }
    if (!all.empty()) write_archived(*copy, all);
  } catch (const c10::Error& error) {
    return where +
           " cannot be read and written, so that changes and differences between ranks "
           "would not be noticed: " +
           error.what_without_backtrace() +
           " Implement serialize() for both archives, as LibTorch's options do.";
  }
  return {};
}

std::vector<OptionField> read_options(const OptimizerOptions& options) {
  if (const auto* const named = dynamic_cast<const NamedOptions*>(&options)) return named->fields;
  std::vector<OptionField> fields;
  // Only to visit: nothing is written.
  const bool is_known = visit_known(
      const_cast<OptimizerOptions&>(options),
      [&](const char* name, const auto& value) { fields.push_back({name, to_values(value)}); });
  if (is_known) return fields;
  try {
    for (const ArchivedOption& option : read_archived(options)) {
      fields.push_back({option.name, {}});
      append_numbers(option.value, fields.back().values);
    }
  } catch (const c10::Error&) {
    return {};  // an optimizer with such options is refused, on all ranks
  }
  return fields;
}

void write_option(OptimizerOptions& options, const std::string& name,
                  const std::vector<double>& values) {
  if (auto* const named = dynamic_cast<NamedOptions*>(&options)) {
    const auto field = std::ranges::find(named->fields, name, &OptionField::name);
    if (field != named->fields.end()) field->values = values;
    return;
  }
  const bool is_known = visit_known(options, [&](const char* field, auto& value) {
    if (name == field) from_values(values, value);
  });
  if (is_known) return;
  std::vector<ArchivedOption> all = read_archived(options);
  for (ArchivedOption& option : all) {
    if (option.name != name) continue;
    std::span<const double> numbers(values);
    option.value = with_numbers(option.value, numbers);
  }
  write_archived(options, all);
}

namespace {

bool have_same(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::ranges::equal(some, others, &at::Tensor::is_same);
}

bool have_same_members(const OptionSync::Groups& some, const OptionSync::Groups& others) {
  return std::ranges::equal(some, others, [](const auto& one, const auto& other) {
    return have_same(one.params(), other.params());
  });
}

/// Values that are not numbers are equal.
bool are_equal(const std::vector<double>& some, const std::vector<double>& others) {
  return std::ranges::equal(some, others, [](double one, double other) {
    return one == other || (std::isnan(one) && std::isnan(other));
  });
}

/// Throws unless both sides still have the options of the last call, and equally many values of
/// each: those of one side can then be written to the other.
void require_same_fields(const std::vector<OptionField>& own,
                         const std::vector<OptionField>& theirs,
                         const std::vector<OptionField>& last, std::size_t group) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument("DistributedOptimizer: parameter group " + std::to_string(group) + " " +
                          what);
  };
  for (std::size_t f = 0; f < last.size(); ++f) {
    const std::string& name = last[f].name;
    if (f >= own.size() || f >= theirs.size() || own[f].name != name || theirs[f].name != name) {
      refuse("no longer has its option " + name + ", whose changes are followed. Keep it.");
    }
    if (own[f].values.size() == theirs[f].values.size()) continue;
    refuse("has " + std::to_string(own[f].values.size()) + " values of option " + name +
           " on it and " + std::to_string(theirs[f].values.size()) +
           " on the wrapped optimizer: only their values can be followed. Set lists of the same "
           "length on both.");
  }
}

}  // namespace

std::string text_of_values(const std::vector<double>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i > 0 ? ", " : "") << values[i];
  return text.str();
}

OptionSync::OptionSync(Groups& groups) {
  std::vector<Group> all;
  for (auto& group : groups) all.push_back({read_options(group.options()), group.params()});
  note_members(std::move(all));
}

void OptionSync::match_members(Groups& ours, Groups& wrapped) {
  const bool ours_changed = have_changed(ours);
  const bool wrapped_changed = have_changed(wrapped);
  if (!ours_changed && !wrapped_changed) return;
  if (ours_changed && wrapped_changed && !have_same_members(ours, wrapped)) {
    throw InvalidArgument(
        "DistributedOptimizer: parameter groups were changed both in it and in the wrapped "
        "optimizer. Add, move and remove parameters and groups in one of the two; the other "
        "follows at the next zero_grad() or step().");
  }
  Groups& from = ours_changed ? ours : wrapped;
  Groups& to = ours_changed ? wrapped : ours;
  const bool is_matched = ours_changed && wrapped_changed;
  const std::vector<std::optional<std::size_t>> places = places_of(from);
  std::vector<Group> last;
  Groups matched;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::optional<std::size_t> place = places[i];
    last.push_back(
        {place ? last_[*place].options : read_options(from[i].options()), from[i].params()});
    if (is_matched) continue;
    if (place) {
      matched.push_back(std::move(to[*place]));
      matched.back().params() = from[i].params();
    } else {
      matched.push_back(from[i]);
    }
  }
  if (!is_matched) to = std::move(matched);
  note_members(std::move(last));
  merge_options(ours, wrapped);
}

bool OptionSync::have_changed(const Groups& groups) const {
  return !std::ranges::equal(groups, last_, [](const auto& group, const Group& last) {
    return have_same(group.params(), last.members);
  });
}

/// The places in last_ of these groups; none for new ones. If groups were added or erased, a group
/// is the one that it shares a parameter with.
std::vector<std::optional<std::size_t>> OptionSync::places_of(const Groups& groups) const {
  std::vector<std::optional<std::size_t>> places(groups.size());
  std::vector<bool> is_taken(last_.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups.size() == last_.size()) {
      places[i] = i;
      continue;
    }
    for (const at::Tensor& parameter : groups[i].params()) {
      const std::optional<std::size_t> place = group_of(parameter);
      if (!place || is_taken[*place]) continue;
      is_taken[*place] = true;
      places[i] = place;
      break;
    }
  }
  return places;
}

void OptionSync::note_members(std::vector<Group> groups) {
  last_ = std::move(groups);
  ++version_;
  group_of_.clear();
  for (std::size_t i = 0; i < last_.size(); ++i) {
    for (const at::Tensor& member : last_[i].members) {
      group_of_.emplace(member.unsafeGetTensorImpl(), i);
    }
  }
}

std::optional<std::size_t> OptionSync::group_of(const at::Tensor& parameter) const {
  const auto found = group_of_.find(parameter.unsafeGetTensorImpl());
  if (found == group_of_.end()) return std::nullopt;
  return found->second;
}

void OptionSync::merge(Groups& ours, Groups& wrapped) {
  match_members(ours, wrapped);
  merge_options(ours, wrapped);
}

void OptionSync::merge_options(Groups& ours, Groups& wrapped) {
  for (std::size_t i = 0; i < last_.size(); ++i) {
    std::vector<OptionField>& last = last_[i].options;
    bool has_changed = false;
    const std::vector<OptionField> own = read_options(ours[i].options());
    const std::vector<OptionField> theirs = read_options(wrapped[i].options());
    require_same_fields(own, theirs, last, i);
    for (std::size_t f = 0; f < last.size(); ++f) {
      const std::vector<double>& before = last[f].values;
      const bool own_changed = !are_equal(own[f].values, before);
      const bool theirs_changed = !are_equal(theirs[f].values, before);
      if (own_changed && theirs_changed && !are_equal(own[f].values, theirs[f].values)) {
        throw InvalidArgument("DistributedOptimizer: option " + own[f].name +
                              " of parameter group " + std::to_string(i) + " was changed to " +
                              text_of_values(own[f].values) + " on it and to " +
                              text_of_values(theirs[f].values) +
                              " on the wrapped optimizer. Change it on one of the two.");
      }
      if (own_changed) write_option(wrapped[i].options(), own[f].name, own[f].values);
      if (theirs_changed) write_option(ours[i].options(), own[f].name, theirs[f].values);
      has_changed = has_changed || own_changed || theirs_changed;
    }
    if (!has_changed) continue;
    ++version_;
    last = read_options(ours[i].options());
  }
}

nlohmann::json OptionSync::describe(Groups& groups) {
  nlohmann::json described = nlohmann::json::array();
  for (auto& group : groups) {
    nlohmann::json& options = described.emplace_back(nlohmann::json::object());
    for (const OptionField& field : read_options(group.options()))
      options[field.name] = field.values;
  }
  return described;
}

void OptionSync::apply(const nlohmann::json& options, Groups& groups) {
  for (std::size_t i = 0; i < std::min(groups.size(), options.size()); ++i) {
    for (const auto& [name, values] : options.at(i).items()) {
      write_option(groups[i].options(), name, values.get<std::vector<double>>());
    }
  }
}

}  // namespace kolo::train
