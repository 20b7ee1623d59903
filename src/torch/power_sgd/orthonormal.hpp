#pragma once

#include <cstddef>
#include <span>

namespace kolo::tensors {

/// Makes the columns of a row-major matrix with `columns` columns orthonormal: Gram-Schmidt in
/// float64, one element after another, so that equal matrices have equal results on all ranks for
/// any number of threads. A column that depends on the ones before it becomes zero. A column with a
/// value that is not finite becomes NaN, as do those after it.
template <class Number>
void orthonormalize(std::span<Number> matrix, std::size_t columns);

}  // namespace kolo::tensors
