#include "torch/training/model_match.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <ATen/MemoryOverlap.h>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "torch/checkpoint/printable.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

/// The tensor without elements that lie in the memory of others.
at::Tensor without_copies(at::Tensor tensor, const at::Tensor& expanded) {
  for (std::int64_t d = 0; d < expanded.dim(); ++d) {
    if (expanded.stride(d) == 0 && expanded.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

/// "3 tensors: a, b, c".
std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::string text =
      std::to_string(names.size()) + (names.size() == 1 ? " tensor: " : " tensors: ");
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return text + (names.size() > kMost ? ", ..." : "");
}

}  // namespace

bool can_take(const at::Tensor& own, DType dtype, const std::vector<std::int64_t>& shape) {
  if (own.sizes() != at::IntArrayRef(shape)) return false;
  const at::ScalarType saved = scalar_type_of(dtype);
  return saved == own.scalar_type() ||
         (at::isFloatingType(saved) && at::isFloatingType(own.scalar_type())) ||
         (at::isComplexType(saved) && at::isComplexType(own.scalar_type()));
}

void require_some(const Loaded& found, const std::string& what) {
  if (!found.loaded.empty() || found.left_out.empty()) return;
  throw InvalidArgument(what + " has no parameter or buffer of the model. The model has " +
                        list_of(found.left_out) + "; there, " +
                        (found.unused.empty() ? "nothing" : list_of(found.unused)) + ".");
}

void log_partial(const Loaded& loaded) {
  if (loaded.left_out.empty() && loaded.converted.empty()) return;
  std::string text = "loading '" + loaded.path.string() + "' has set " +
                     std::to_string(loaded.loaded.size()) + " parameters and buffers of the model";
  if (!loaded.converted.empty()) text += "; converted " + list_of(loaded.converted);
  if (!loaded.left_out.empty()) text += "; left out " + list_of(loaded.left_out);
  if (!loaded.unused.empty()) text += "; did not use " + list_of(loaded.unused);
  KOLO_LOG(Warn) << printable(text);
}

void require_alike_where_shared(const std::string& name, const at::Tensor& own,
                                const at::Tensor& values) {
  if (at::has_internal_overlap(own) != at::MemOverlap::Yes) return;
  const at::Tensor given = values.contiguous();
  const at::Tensor held = without_copies(given, own).expand_as(given).contiguous();
  if (std::memcmp(given.const_data_ptr(), held.const_data_ptr(), given.nbytes()) == 0) return;
  throw InvalidArgument("'" + name +
                        "' is expanded in the program, so that some of its elements share memory, "
                        "but their saved values differ. Use clone() in the program.");
}

void copy_values(const at::Tensor& own, const at::Tensor& values) {
  without_copies(own, own).copy_(without_copies(values, own));
}

}  // namespace kolo::train
