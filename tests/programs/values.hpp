#pragma once

#include <cstddef>
#include <vector>

#include "kolo/reduction.hpp"
#include "programs/program.hpp"

namespace kolo::programs {

/// Element `index` of `rank`'s input, in closed form. It differs for every operation, tensor, rank
/// and index, and is exact in the type.
double input_value(const Operation& operation, std::size_t tensor, int rank, std::size_t index);

/// The number of elements in the input of `rank`.
std::size_t input_count(const Program& program, const Operation& operation, std::size_t tensor,
                        int rank);

/// `input_count` elements.
std::vector<std::byte> input_of(const Program& program, const Operation& operation,
                                std::size_t tensor, int rank);

/// The program's own reductions: "added" and "greatest".
std::vector<CustomReduction> custom_reductions();
/// The built-in equivalent of a Custom reduction.
ReduceOp as_built_in(const std::string& custom, DType dtype);

}  // namespace kolo::programs
