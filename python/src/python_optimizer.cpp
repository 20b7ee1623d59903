#include "python_optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "kolo/error.hpp"

namespace kolo::python {
namespace {

using train::OptionField;
using train::StateField;

/// The options of LibTorch's classes in C++.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOptionsInCpp{{
    {"SGD", " lr momentum dampening weight_decay nesterov "},
    {"Adam", " lr betas eps weight_decay amsgrad "},
    {"AdamW", " lr betas eps weight_decay amsgrad "},
    {"RMSprop", " lr alpha eps weight_decay momentum centered "},
    {"Adagrad", " lr lr_decay weight_decay initial_accumulator_value eps "},
}};
/// How to compute, not what.
constexpr std::string_view kImplementations = " foreach fused capturable differentiable ";

bool has_word(std::string_view words, const std::string& word) {
  return words.find(" " + word + " ") != std::string_view::npos;
}

/// Appends the numbers of an option; returns whether it consists of numbers.
bool append_numbers(py::handle value, std::vector<double>& numbers) {
  if (THPVariable_Check(value.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    if (tensor.numel() == 1) numbers.push_back(tensor.item<double>());
    return tensor.numel() == 1;
  }
  if (py::hasattr(value, "__float__")) {  // an int, a bool, a number of NumPy
    numbers.push_back(py::float_(py::reinterpret_borrow<py::object>(value)));
    return true;
  }
  if (!py::isinstance<py::tuple>(value) && !py::isinstance<py::list>(value)) return false;
  for (const py::handle element : value) {
    if (!append_numbers(element, numbers)) return false;
  }
  return true;
}

/// A value like `value`, with the next numbers, which it removes.
py::object with_numbers(py::handle value, std::span<const double>& numbers) {
  if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
    py::list elements;
    for (const py::handle element : value) elements.append(with_numbers(element, numbers));
    if (py::isinstance<py::list>(value)) return elements;
    return py::tuple(elements);
  }
  const double number = numbers.front();
  numbers = numbers.subspan(1);
  if (THPVariable_Check(value.ptr())) {
    THPVariable_Unpack(value.ptr()).detach().fill_(number);
    return py::reinterpret_borrow<py::object>(value);
  }
  if (py::isinstance<py::bool_>(value)) return py::bool_(number != 0.0);
  if (py::isinstance<py::int_>(value) && number == std::floor(number)) {
    return py::int_(static_cast<std::int64_t>(number));
  }
  return py::float_(number);
}

/// The class of the program: `_Distributed` stands before it.
py::object class_of(const py::object& optimizer) {
  return py::type::of(optimizer).attr("__mro__")[py::int_(2)];
}

std::string module_of(const py::handle& type) {
  return type.attr("__module__").cast<std::string>();
}

/// The names of torch.optim's classes that the class is or derives from, between spaces.
std::string classes_of_torch(const py::object& type) {
  const py::handle base = py::module_::import("torch.optim").attr("Optimizer");
  std::string names = " ";
  for (const py::handle each : py::tuple(type.attr("__mro__"))) {
    if (each.is(base) || !(module_of(each) + ".").starts_with("torch.optim.")) continue;
    names += each.attr("__name__").cast<std::string>() + " ";
  }
  return names;
}

/// What the class or torch says of whether steps look at whole tensors; none of other classes.
std::optional<bool> what_is_said_by(const py::object& optimizer) {
  const py::object said = py::getattr(optimizer, "needs_whole_tensors", py::none());
  if (!said.is_none()) return said.cast<bool>();
  const py::object type = class_of(optimizer);
  const std::string names = classes_of_torch(type);
  if (has_word(names, "Adafactor") || has_word(names, "Muon")) return true;
  if ((module_of(type) + ".").starts_with("torch.optim.")) return false;
  return {};
}

/// The names of the options that C++ follows, of those that the class's constructor has: schedulers
/// keep values of their own in the groups. Adds to `unfollowed` those that it does not follow as
/// long as they are 0, since its class does not have them.
std::vector<std::string> names_of_options(const py::object& optimizer,
                                          std::vector<std::string>& unfollowed) {
  const py::object type = class_of(optimizer);
  const auto known = std::ranges::find(kOptionsInCpp, type.attr("__name__").cast<std::string>(),
                                       &std::pair<std::string_view, std::string_view>::first);
  const bool is_in_cpp = module_of(type).starts_with("torch.optim") && known != kOptionsInCpp.end();
  std::vector<std::string> names;
  for (const auto& [key, value] : py::dict(py::getattr(optimizer, "defaults", py::dict()))) {
    auto name = key.cast<std::string>();
    if (has_word(kImplementations, name)) continue;
    bool is_number = true;
    bool is_set = false;  // of one that C++'s class does not have: to what it does not do
    for (const py::handle group : optimizer.attr("param_groups")) {
      std::vector<double> numbers;
      is_number = is_number && append_numbers(group[name.c_str()], numbers);
      is_set = is_set || std::ranges::any_of(numbers, [](double number) { return number != 0.0; });
    }
    const bool is_extra = is_in_cpp && !has_word(known->second, name);
    const bool makes_adamw =
        is_in_cpp && name == "decoupled_weight_decay" && known->first == "AdamW";
    if (!is_number || makes_adamw) continue;
    (is_extra && !is_set ? unfollowed : names).push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

[[noreturn]] void refuse_archive() {
  throw InvalidArgument(
      "DistributedOptimizer: an optimizer of Python has no archive of LibTorch. Call state_dict() "
      "and load_state_dict(), or save() and load().");
}

}  // namespace

PythonOptimizer::PythonOptimizer(const py::object& optimizer)
    : weak_(optimizer),
      class_name_(module_of(class_of(optimizer)) + "." +
                  class_of(optimizer).attr("__qualname__").cast<std::string>()),
      is_of_torch_(classes_of_torch(class_of(optimizer)) != " "),
      needs_whole_(what_is_said_by(optimizer)),
      options_(names_of_options(optimizer, unfollowed_)) {
  pull();
}

std::shared_ptr<void> PythonOptimizer::keep_groups() {
  const py::gil_scoped_acquire lock;
  return std::shared_ptr<void>(
      self().attr("_keep_groups")().release().ptr(),
      [this, follows = follows_options_](void* kept) {
        const py::gil_scoped_acquire again;
        py::reinterpret_steal<py::function>(static_cast<PyObject*>(kept))();
        follows_options_ = follows;
        pull();
      });
}

PythonOptimizer::~PythonOptimizer() {
  const py::gil_scoped_acquire lock;
  weak_.release().dec_ref();
}

/// Null once Python destroys it, and then what is kept for it.
py::object PythonOptimizer::self() const {
  py::object optimizer = weak_();
  return optimizer.is_none() ? py::object() : optimizer;
}

void PythonOptimizer::pull() {
  groups_.clear();
  pulled_.clear();
  for (const py::handle group : self().attr("param_groups")) {
    auto options = std::make_unique<train::NamedOptions>();
    for (const std::string& name : options_) {
      OptionField& field = options->fields.emplace_back(OptionField{name, {}});
      if (group.contains(name)) append_numbers(group[name.c_str()], field.values);
      if (!follows_options_) std::ranges::fill(field.values, 0.0);
    }
    for (const std::string& name : unfollowed_) {
      std::vector<double> numbers;
      if (!group.contains(name) || !append_numbers(group[name.c_str()], numbers)) continue;
      if (std::ranges::all_of(numbers, [](double number) { return number == 0.0; })) continue;
      throw InvalidArgument("DistributedOptimizer: option " + name + " of parameter group " +
                            std::to_string(groups_.size()) +
                            " has been set, but was not when the optimizer was wrapped, so that "
                            "it would be neither compared nor saved. Set it before.");
    }
    pulled_.push_back(options->fields);
    groups_.emplace_back(group["params"].cast<std::vector<at::Tensor>>(), std::move(options));
  }
}

void PythonOptimizer::push() {
  const py::list groups = self().attr("param_groups");
  for (std::size_t i = 0; i < std::min(pulled_.size(), groups.size()); ++i) {
    const auto& options = static_cast<const train::NamedOptions&>(groups_[i].options());
    for (std::size_t f = 0; f < pulled_[i].size(); ++f) {
      const OptionField& field = options.fields[f];
      const bool is_same = std::ranges::equal(
          field.values, pulled_[i][f].values,
          [](double one, double other) { return one == other || std::isnan(one); });
      if (is_same || field.values.empty()) continue;
      std::span<const double> numbers(field.values);
      groups[i][field.name.c_str()] = with_numbers(groups[i][field.name.c_str()], numbers);
      pulled_[i][f] = field;
    }
  }
}

train::NamedModel PythonOptimizer::model() const {
  using Named = train::TrainingContext::NamedTensors;
  const py::gil_scoped_acquire lock;
  const py::object optimizer = self();
  return {optimizer.attr("_named_parameters")().cast<Named>(),
          optimizer.attr("_named_buffers")().cast<Named>()};
}

std::string PythonOptimizer::problem(const DistributedOptimizerOptions& options) const {
  if (class_name_ == "torch.optim.lbfgs.LBFGS") {
    return "LBFGS evaluates its closure several times a step and chooses by this rank's loss, so "
           "that ranks would diverge. Use an optimizer that does not.";
  }
  const bool is_sharded = *options.shard != Shard::None;
  if (is_sharded || !options.reduce_dtype || class_name_ == "torch.optim.sgd.SGD") return {};
  const auto has_wider_gradients = [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& parameter) {
      return c10::elementSize(*options.reduce_dtype) > parameter.element_size();
    });
  };
  if (std::ranges::none_of(groups_, has_wider_gradients)) return {};
  return std::string("gradients will be of ") + c10::toString(*options.reduce_dtype) +
         " by reduce_dtype, with which " + class_name_ +
         " does not step parameters of another dtype. Shard the optimizer, or leave it out.";
}

at::Tensor PythonOptimizer::step(const LossClosure& closure) {
  at::Tensor loss = closure ? closure() : at::Tensor();
  const py::gil_scoped_acquire lock;
  self().attr("_step_wrapped")();
  follows_options_ = true;
  return loss;
}

void PythonOptimizer::step_leaves(std::vector<std::vector<at::Tensor>> leaves) {
  const py::gil_scoped_acquire lock;
  push();  // a joined rank has just received the options
  const py::list groups = self().attr("param_groups");
  py::list own;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    own.append(groups[i]["params"]);
    groups[i]["params"] = py::cast(leaves[i]);
  }
  const auto restore = [&] {
    for (std::size_t i = 0; i < leaves.size(); ++i) groups[i]["params"] = own[i];
  };
  try {
    self().attr("_step_wrapped")();
  } catch (...) {
    restore();
    throw;
  }
  restore();
  follows_options_ = true;
}

/// The entry of a leaf in Python's state: a dictionary, or null.
py::object PythonOptimizer::state_of(const at::Tensor& leaf) const {
  const py::object optimizer = self();
  if (!optimizer) return {};
  const py::dict all = optimizer.attr("state");
  const py::object key = py::cast(leaf);
  return all.contains(key) ? py::object(all[key]) : py::object();
}

bool PythonOptimizer::has_state(const at::Tensor& leaf) const {
  const py::gil_scoped_acquire lock;
  const py::object entry = state_of(leaf);
  if (!entry) return false;
  const py::dict fields = entry;
  return std::ranges::any_of(fields, [](const auto& field) { return !field.second.is_none(); });
}

std::optional<std::vector<StateField>> PythonOptimizer::state(const at::Tensor& leaf) const {
  const py::gil_scoped_acquire lock;
  const py::object entry = state_of(leaf);
  if (!entry) return {};
  std::vector<StateField> fields;
  for (const auto& [key, value] : py::dict(entry)) {
    auto name = key.cast<std::string>();
    if (value.is_none()) continue;
    const bool is_step = name == "step";
    if (THPVariable_Check(value.ptr())) {
      const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
      const bool is_number = tensor.dim() == 0 && (is_step || (is_of_torch_ && leaf.dim() > 0));
      if (!is_number) {
        fields.push_back({std::move(name), tensor});
        continue;
      }
    }
    std::vector<double> numbers;
    if (!append_numbers(value, numbers) || numbers.size() != 1) {
      throw InvalidArgument("DistributedOptimizer: " + class_name_ + " keeps '" + name +
                            "' of a parameter, which is neither a tensor nor a number, so that it "
                            "can be neither sharded nor saved.");
    }
    const bool is_whole = is_step || (py::isinstance<py::int_>(value));
    fields.push_back({std::move(name), is_whole ? c10::IValue(static_cast<std::int64_t>(numbers[0]))
                                                : c10::IValue(numbers[0])});
  }
  if (fields.empty()) return {};
  return fields;
}

void PythonOptimizer::set_state(const at::Tensor& leaf, const std::vector<StateField>& fields) {
  const py::gil_scoped_acquire lock;
  py::dict entry;
  for (const StateField& field : fields) {
    py::object value;
    if (field.value.isTensor()) {
      value = py::cast(field.value.toTensor());
    } else if (is_of_torch_) {
      value = py::cast(at::scalar_tensor(field.value.toScalar(), at::kFloat));
    } else {
      value = py::cast(field.value.toScalar());
    }
    entry[field.name.c_str()] = value;
  }
  self().attr("state")[py::cast(leaf)] = entry;
}

void PythonOptimizer::erase_state(const at::Tensor& leaf) {
  const py::gil_scoped_acquire lock;
  const py::object optimizer = self();
  if (optimizer) optimizer.attr("state").attr("pop")(py::cast(leaf), py::none());
}

void PythonOptimizer::save(torch::serialize::OutputArchive&) const { refuse_archive(); }
void PythonOptimizer::load(torch::serialize::InputArchive&) { refuse_archive(); }

void PythonOptimizer::broadcast_state(int root, ProcessSet&) {
  const py::gil_scoped_acquire lock;
  self().attr("_broadcast_wrapped")(root);
}

}  // namespace kolo::python
