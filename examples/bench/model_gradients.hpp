#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bench {

/// resnet50, bert_base, gpt2_small.
const std::vector<std::string>& model_names();

/// The number of elements of each parameter of a model, computed from its architecture, in the
/// order in which backward computes gradients: the last layer's first. Throws std::out_of_range for
/// other names.
std::vector<std::size_t> gradient_counts(const std::string& model);

}  // namespace bench
