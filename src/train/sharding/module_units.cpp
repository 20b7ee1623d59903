#include "train/sharding/module_units.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/nn/module.h>

namespace kolo::train {
namespace {

/// The units around a parameter, outermost first.
using Path = std::vector<std::size_t>;

class UnitSearch {
 public:
  explicit UnitSearch(const ModuleFilter& policy) : policy_(policy) {}

  void visit(const torch::nn::Module& module, const std::string& name) {
    const bool is_unit = !name.empty() && policy_(name, module);
    if (is_unit) path_.push_back(count_++);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) add(item.value());
    for (const auto& item : module.named_children()) {
      visit(*item.value(), name.empty() ? item.key() : name + "." + item.key());
    }
    if (is_unit) path_.pop_back();
  }

  std::size_t count() const { return count_; }
  /// In order of discovery.
  const std::vector<std::pair<at::Tensor, Path>>& parameters() const { return parameters_; }

 private:
  /// A tied parameter belongs to the units that enclose all its modules.
  void add(const at::Tensor& parameter) {
    const auto [found, is_new] =
        known_.emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
    if (is_new) {
      parameters_.emplace_back(parameter, path_);
      return;
    }
    Path& common = parameters_[found->second].second;
    const auto end = std::ranges::mismatch(common, path_).in1;
    common.erase(end, common.end());
  }

  const ModuleFilter& policy_;
  Path path_;
  std::size_t count_ = 0;
  std::unordered_map<const void*, std::size_t> known_;
  std::vector<std::pair<at::Tensor, Path>> parameters_;
};

}  // namespace

std::vector<std::vector<at::Tensor>> units_in(const NamedModules& model, const ModuleFilter& policy,
                                              const torch::optim::Optimizer& optimizer) {
  UnitSearch search(policy);
  for (const auto& [name, module] : model.modules()) search.visit(module, name);
  std::unordered_set<const void*> trained;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      trained.insert(parameter.unsafeGetTensorImpl());
    }
  }
  std::vector<std::vector<at::Tensor>> units(search.count());
  for (const auto& [parameter, path] : search.parameters()) {
    const bool is_known = !parameter.requires_grad() ||  // frozen ones are gathered, too
                          trained.contains(parameter.unsafeGetTensorImpl());
    if (path.empty() || !is_known) continue;
    units[path.back()].push_back(parameter);
  }
  std::erase_if(units, [](const auto& unit) { return unit.empty(); });
  return units;
}

}  // namespace kolo::train
