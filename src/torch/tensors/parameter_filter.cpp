#include "kolo/torch/parameter_filter.hpp"

namespace kolo {

ParameterFilter matrices(std::int64_t least_elements) {
  return [=](const std::string&, const at::Tensor& parameter) {
    return parameter.dim() >= 2 && parameter.numel() >= least_elements;
  };
}

}  // namespace kolo
