#include <algorithm>
#include <cstddef>
#include <memory>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include "kolo/error.hpp"
#include "kolo/torch/sync_batch_norm.hpp"

namespace kolo {
namespace {

using torch::nn::Module;
using torch::nn::SequentialImpl;

/// A BatchNorm module, and where it is registered.
struct FoundNorm {
  struct Place {
    SequentialImpl* parent;
    std::string key;   // in the parent
    std::string name;  // in the model
  };

  std::weak_ptr<Module> module;
  std::vector<Place> places{};
  long known_owners = 0;  // owners that a replacement updates
  std::string problem{};  // why it cannot be replaced, beginning with its name
};

bool is_batch_norm(const Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr ||
         module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

/// Calls `visit` with the module as its dynamic type. Returns false for a derived class.
template <class Visit>
bool visit_as_batch_norm(const Module& module, const Visit& visit) {
  const auto visit_if = [&]<class Norm>(const Norm* norm) {
    const bool is_norm = norm != nullptr && typeid(module) == typeid(Norm);
    if (is_norm) visit(*norm);
    return is_norm;
  };
  return visit_if(module.as<torch::nn::BatchNorm1d>()) ||
         visit_if(module.as<torch::nn::BatchNorm2d>()) ||
         visit_if(module.as<torch::nn::BatchNorm3d>());
}

/// How often the module's forward() is called through `sequential`.
long calls_in(const SequentialImpl& sequential, const Module& module) {
  return std::ranges::count_if(sequential, [&](const torch::nn::AnyModule& element) {
    return element.ptr().get() == &module;
  });
}

class NormSearch {
 public:
  void visit(Module& parent, const std::string& name) {
    if (!visited_.insert(&parent).second) return;
    for (const auto& item : parent.named_children()) {
      const std::string full_name = name.empty() ? item.key() : name + "." + item.key();
      if (is_batch_norm(*item.value())) {
        add(item.value(), parent, item.key(), full_name);
      } else {
        visit(*item.value(), full_name);
      }
    }
  }

  /// Call it when the search no longer holds modules, since it compares use counts.
  std::vector<FoundNorm> found() {
    for (FoundNorm& norm : found_) {
      if (!norm.problem.empty() || norm.module.use_count() == norm.known_owners) continue;
      norm.problem = "'" + norm.places.front().name +
                     "': something else holds it too, such as a variable or a member, and would go "
                     "on using the old one. Let go of it before";
    }
    return std::move(found_);
  }

 private:
  void add(const std::shared_ptr<Module>& module, Module& parent, const std::string& key,
           const std::string& name) {
    const auto [index, is_new] = indexes_.emplace(module.get(), found_.size());
    if (is_new) found_.push_back({.module = module});
    FoundNorm& norm = found_[index->second];
    auto* const sequential = parent.as<SequentialImpl>();
    const long calls = sequential != nullptr ? calls_in(*sequential, *module) : 0;
    if (calls == 0) {
      norm.problem = "'" + name + "': the code of " + parent.name() +
                     " calls it by its own type. Declare it there as kolo::SyncBatchNorm";
    } else if (!visit_as_batch_norm(*module, [](const auto&) {})) {
      norm.problem =
          "'" + name + "': it is a " + module->name() + ", whose forward() would be lost";
    }
    const bool is_first_here = std::ranges::none_of(
        norm.places, [&](const auto& place) { return place.parent == sequential; });
    norm.known_owners += 1 + (is_first_here ? calls : 0);
    norm.places.push_back({sequential, key, name});
  }

  std::unordered_set<const Module*> visited_;
  std::vector<FoundNorm> found_;
  std::unordered_map<const Module*, std::size_t> indexes_;
};

void refuse_problems(const std::vector<FoundNorm>& found) {
  std::string text;
  for (const FoundNorm& norm : found) {
    if (norm.problem.empty()) continue;
    text += "\n  " + norm.problem + ".";
  }
  if (text.empty()) return;
  throw InvalidArgument(
      "convert_sync_batch_norm: these modules cannot be replaced, so none has been:" + text +
      "\nOr keep BatchNorm, and call kolo::sync_running_statistics before evaluations.");
}

void replace(const FoundNorm& norm, ProcessSet* set) {
  const std::shared_ptr<Module> old = norm.module.lock();
  std::shared_ptr<SyncBatchNormImpl> made;
  visit_as_batch_norm(*old, [&](const auto& batch_norm) {
    made = std::make_shared<SyncBatchNormImpl>(batch_norm, set);
  });
  for (const FoundNorm::Place& place : norm.places) {
    place.parent->replace_module(place.key, made);
    for (torch::nn::AnyModule& element : *place.parent) {
      if (element.ptr() == old) element = made;
    }
  }
}

}  // namespace

std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module,
                                                 ProcessSet* process_set) {
  if (is_batch_norm(module)) {
    throw InvalidArgument(
        "convert_sync_batch_norm: the model itself is a BatchNorm, which its holder cannot be "
        "made to forget. Construct kolo::SyncBatchNorm(*batch_norm).");
  }
  NormSearch search;
  search.visit(module, "");
  const std::vector<FoundNorm> found = search.found();
  refuse_problems(found);
  std::vector<std::string> names;
  for (const FoundNorm& norm : found) {
    replace(norm, process_set);
    for (const FoundNorm::Place& place : norm.places) names.push_back(place.name);
  }
  return names;
}

}  // namespace kolo
