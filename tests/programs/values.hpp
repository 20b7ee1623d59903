#pragma once

#include <cstddef>
#include <vector>

#include "kolo/reduction.hpp"
#include "programs/program.hpp"

namespace kolo::programs {

/// Element `index` of `rank`'s input, of a type that holds it: in closed form, other for every
/// operation, tensor, rank and place.
double input_value(const Operation& operation, std::size_t tensor, int rank, std::size_t index);

/// How many elements the input of `rank` has.
std::size_t input_count(const Program& program, const Operation& operation, std::size_t tensor,
                        int rank);

/// `input_count` elements.
std::vector<std::byte> input_of(const Program& program, const Operation& operation,
                                std::size_t tensor, int rank);

/// The program's own reductions: "added" and "greatest".
std::vector<CustomReduction> custom_reductions();
/// What a Custom reduction does, as a built-in one.
ReduceOp as_built_in(const std::string& custom, DType dtype);

}  // namespace kolo::programs
