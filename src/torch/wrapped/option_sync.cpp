#include "torch/wrapped/option_sync.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

bool have_same(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::ranges::equal(some, others, &at::Tensor::is_same);
}

bool have_same_members(const OptionSync::Groups& some, const OptionSync::Groups& others) {
  return std::ranges::equal(some, others, [](const auto& one, const auto& other) {
    return have_same(one.params(), other.params());
  });
}

std::string text_of(const std::vector<double>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i > 0 ? ", " : "") << values[i];
  return text.str();
}

}  // namespace

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
  for (std::size_t i = 0; i < last_.size(); ++i) {
    std::vector<OptionField>& last = last_[i].options;
    bool has_changed = false;
    const std::vector<OptionField> own = read_options(ours[i].options());
    const std::vector<OptionField> theirs = read_options(wrapped[i].options());
    for (std::size_t f = 0; f < last.size(); ++f) {
      const std::vector<double>& before = last[f].values;
      const bool own_changed = own[f].values != before;
      const bool theirs_changed = theirs[f].values != before;
      if (own_changed && theirs_changed && own[f].values != theirs[f].values) {
        throw InvalidArgument(
            "DistributedOptimizer: option " + own[f].name + " of parameter group " +
            std::to_string(i) + " was changed to " + text_of(own[f].values) + " on it and to " +
            text_of(theirs[f].values) + " on the wrapped optimizer. Change it on one of the two.");
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

}  // namespace kolo::tensors
