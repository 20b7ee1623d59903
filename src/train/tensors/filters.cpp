#include "kolo/torch/filters.hpp"

#include <algorithm>
#include <fnmatch.h>

namespace kolo {

ModuleFilter modules_named(const std::string& pattern) {
  const auto as_path = [](std::string name) {
    std::ranges::replace(name, '.', '/');
    return name;
  };
  return [path = as_path(pattern), as_path](const std::string& name, const torch::nn::Module&) {
    return fnmatch(path.c_str(), as_path(name).c_str(), FNM_PATHNAME | FNM_NOESCAPE) == 0;
  };
}

ParameterFilter matrices(std::int64_t least_elements) {
  return [=](const std::string&, const at::Tensor& parameter) {
    return parameter.dim() >= 2 && parameter.numel() >= least_elements;
  };
}

}  // namespace kolo
