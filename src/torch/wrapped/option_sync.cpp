#include "torch/wrapped/option_sync.hpp"

#include <concepts>
#include <sstream>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "torch/wrapped/libtorch_classes.hpp"

namespace kolo::tensors {
namespace {

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

/// For other classes; the base class throws if they have no learning rate.
template <class Visit>
void visit_learning_rate(OptimizerOptions& options, Visit visit) {
  double rate = 0.0;
  try {
    rate = options.get_lr();
  } catch (const std::exception&) {
    return;
  }
  const double before = rate;
  visit("lr", rate);
  if (rate != before) options.set_lr(rate);
}

template <class Visit>
void visit_options(OptimizerOptions& options, Visit visit) {
  const bool is_known = visit_libtorch_classes([&]<class Class>(Class) {
    auto* const known = dynamic_cast<typename Class::Options*>(&options);
    if (known != nullptr) visit_fields(*known, visit);
    return known != nullptr;
  });
  if (!is_known) visit_learning_rate(options, visit);
}

std::string text_of(const std::vector<double>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i > 0 ? ", " : "") << values[i];
  return text.str();
}

}  // namespace

OptionSync::OptionSync(Groups& groups) {
  for (auto& group : groups) {
    last_.push_back(read(group.options()));
    members_.push_back(group.params().size());
  }
}

void OptionSync::match_members(Groups& ours, Groups& wrapped) {
  const bool ours_changed = have_changed(ours);
  const bool wrapped_changed = have_changed(wrapped);
  if (!ours_changed && !wrapped_changed) return;
  if (ours_changed && wrapped_changed) {
    throw InvalidArgument(
        "DistributedOptimizer: parameters were added both to it and to the wrapped optimizer. Add "
        "them to one of the two; the other follows at the next zero_grad() or step().");
  }
  Groups& from = ours_changed ? ours : wrapped;
  Groups& to = ours_changed ? wrapped : ours;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (i == to.size()) {
      to.push_back(from[i]);
      last_.push_back(read(from[i].options()));
      members_.push_back(0);
    }
    to[i].params() = from[i].params();
    members_[i] = from[i].params().size();
  }
}

bool OptionSync::have_changed(const Groups& groups) const {
  if (groups.size() > members_.size()) return true;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].params().size() != members_[i]) return true;
  }
  return false;
}

void OptionSync::merge(Groups& ours, Groups& wrapped) {
  for (std::size_t i = 0; i < last_.size(); ++i) {
    const std::vector<Field> own = read(ours[i].options());
    const std::vector<Field> theirs = read(wrapped[i].options());
    for (std::size_t f = 0; f < last_[i].size(); ++f) {
      const std::vector<double>& before = last_[i][f].values;
      const bool own_changed = own[f].values != before;
      const bool theirs_changed = theirs[f].values != before;
      if (own_changed && theirs_changed && own[f].values != theirs[f].values) {
        throw InvalidArgument(
            "DistributedOptimizer: option " + own[f].name + " of parameter group " +
            std::to_string(i) + " was changed to " + text_of(own[f].values) + " on it and to " +
            text_of(theirs[f].values) + " on the wrapped optimizer. Change it on one of the two.");
      }
      if (own_changed) write(wrapped[i].options(), own[f].name, own[f].values);
      if (theirs_changed) write(ours[i].options(), own[f].name, theirs[f].values);
    }
    last_[i] = read(ours[i].options());
  }
}

nlohmann::json OptionSync::describe(Groups& groups) {
  nlohmann::json described = nlohmann::json::array();
  for (auto& group : groups) {
    nlohmann::json& options = described.emplace_back(nlohmann::json::object());
    for (const Field& field : read(group.options())) options[field.name] = field.values;
  }
  return described;
}

void OptionSync::apply(const nlohmann::json& options, Groups& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const auto& [name, values] : options.at(i).items()) {
      write(groups[i].options(), name, values.get<std::vector<double>>());
    }
  }
}

std::vector<OptionSync::Field> OptionSync::read(OptimizerOptions& options) {
  std::vector<Field> fields;
  visit_options(options, [&](const char* name, const auto& value) {
    fields.push_back({name, to_values(value)});
  });
  return fields;
}

void OptionSync::write(OptimizerOptions& options, const std::string& name,
                       const std::vector<double>& values) {
  visit_options(options, [&](const char* field, auto& value) {
    if (name == field) from_values(values, value);
  });
}

}  // namespace kolo::tensors
