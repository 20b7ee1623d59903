#include "train/checkpoint/saved_options.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {
namespace {

using Options = TrainingDetails::Options;
using Places = std::vector<std::optional<std::size_t>>;

constexpr const char* kKeepOwn = "Load with optimizer_state = false to keep the program's.";

[[noreturn]] void refuse_group(const SavedTraining& saved, const std::string& member,
                               std::size_t place, std::size_t own) {
  throw InvalidArgument(
      "the checkpoint " + saved.path.string() + " has parameter '" + member +
      "' in parameter group " + std::to_string(place) + ", and the program in group " +
      std::to_string(own) +
      ", but not with the same parameters: these groups' options would be mixed up. Make the "
      "groups that were saved, in any order; or load with strict = false, where a group keeps the "
      "program's options if its members were in several.");
}

/// The saved group of each of the program's. Checkpoints of earlier versions do not name members:
/// their groups are those of the program in the same order.
Places match(const SavedTraining& saved, const TrainingView& view, bool strict) {
  const std::vector<std::vector<std::string>>& members = saved.details.members;
  Places places(view.groups.size());
  if (members.empty()) {
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
    return places;
  }
  std::unordered_map<std::string, std::size_t> place_of;
  for (std::size_t i = 0; i < members.size(); ++i) {
    for (const std::string& name : members[i]) place_of.emplace(name, i);
  }
  Places owners(members.size());  // the program's group of each saved one
  for (std::size_t i = 0; i < places.size(); ++i) {
    bool is_of_several = false;
    for (const std::string& name : view.groups[i]) {
      const auto found = place_of.find(saved.name_of(name));
      if (found == place_of.end()) continue;
      const std::size_t place = found->second;
      if (!places[i]) places[i] = place;
      if (!owners[place]) owners[place] = i;
      if (strict && (*places[i] != place || *owners[place] != i))
        refuse_group(saved, name, place, i);
      is_of_several = is_of_several || *places[i] != place;
    }
    if (is_of_several) places[i].reset();
    const bool are_empty = view.groups[i].empty() && i < members.size() && members[i].empty();
    if (are_empty) places[i] = i;
  }
  return places;
}

/// Whether both have options of the same names and lengths.
bool are_alike(const Options& saved, const Options& own) {
  return std::ranges::equal(saved, own, [](const auto& one, const auto& other) {
    return one.first == other.first && one.second.size() == other.second.size();
  });
}

void require_same_switches(const SavedTraining& saved, const Options& options, const Options& own,
                           std::size_t group) {
  for (const auto& [name, values] : own) {
    const std::vector<double>& there = options.at(name);
    const bool are_same = std::ranges::equal(
        values, there, [](double one, double other) { return (one == 0.0) == (other == 0.0); });
    if (are_same || name == "lr") continue;
    throw InvalidArgument("the checkpoint " + saved.path.string() + " has " + name + " " +
                          text_of_values(there) + " in parameter group " + std::to_string(group) +
                          ", where the program has set " + text_of_values(values) +
                          ". Set it as there; or load with strict = false, which takes the "
                          "checkpoint's options, and set it then.");
  }
}

}  // namespace

std::vector<Options> options_from(const SavedTraining& saved, const TrainingView& view,
                                  const std::vector<Options>& own, bool strict) {
  const std::vector<Options>& groups = saved.details.groups;
  const std::string they = "it has optimizer options ";
  if (saved.details.members.empty() && groups.size() != own.size()) {
    throw InvalidArgument(
        they + nlohmann::json(groups).dump() + " of " + std::to_string(groups.size()) +
        " parameter groups, and the program has " + std::to_string(own.size()) + ". " + kKeepOwn);
  }
  std::vector<Options> loaded = own;
  const Places places = match(saved, view, strict);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (!places[i]) continue;
    const Options& options = groups[*places[i]];
    if (!are_alike(options, own[i])) {
      throw InvalidArgument(they + nlohmann::json(options).dump() + " of parameter group " +
                            std::to_string(*places[i]) + ", which are not those of the program: " +
                            nlohmann::json(own[i]).dump() + ". " + kKeepOwn);
    }
    if (strict) require_same_switches(saved, options, own[i], *places[i]);
    loaded[i] = options;
  }
  return loaded;
}

std::vector<std::string> changes(const std::vector<Options>& own,
                                 const std::vector<Options>& loaded) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (const auto& [name, values] : own[i]) {
      const std::vector<double>& now = loaded[i].at(name);
      if (values == now) continue;
      texts.push_back(name + " of parameter group " + std::to_string(i) + ": " +
                      text_of_values(values) + ", now " + text_of_values(now));
    }
  }
  return texts;
}

}  // namespace kolo::train
