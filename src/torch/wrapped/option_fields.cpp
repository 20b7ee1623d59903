#include "torch/wrapped/option_fields.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <typeinfo>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "kolo/error.hpp"
#include "torch/wrapped/archives.hpp"
#include "torch/wrapped/libtorch_classes.hpp"

namespace kolo::tensors {
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

}  // namespace kolo::tensors
