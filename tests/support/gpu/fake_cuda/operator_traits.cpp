#include "support/gpu/fake_cuda/operator_traits.hpp"

#include <algorithm>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>

namespace kolo::test {
namespace {

using Names = std::set<std::string, std::less<>>;

const Names kWithCpuTensors{"aten::copy_", "aten::index", "aten::_index_put_impl_",
                            "aten::_pack_padded_sequence"};
const Names kOfUnknownSize{"aten::nonzero",
                           "aten::masked_select",
                           "aten::_unique",
                           "aten::_unique2",
                           "aten::unique_consecutive",
                           "aten::unique_dim",
                           "aten::unique_dim_consecutive",
                           "aten::bincount",
                           "aten::repeat_interleave"};
const Names kRunningStatistics{"running_mean", "running_var"};

bool is_of_tensors(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  return type.kind() == c10::TypeKind::ListType && is_of_tensors(*type.containedType(0));
}

/// The arguments are those of copy_(self, source, non_blocking).
bool is_blocking_copy(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& to = arguments[0].toTensor();
  const at::Tensor& from = arguments[1].toTensor();
  const bool non_blocking = arguments[2].toBool();
  return to.is_cuda() != from.is_cuda() && to.numel() > 0 && !non_blocking;
}

}  // namespace

bool is_written(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return true;
  return schema.name() == "aten::native_batch_norm" && kRunningStatistics.contains(argument.name());
}

bool takes_cpu_tensors(const c10::FunctionSchema& schema) {
  return kWithCpuTensors.contains(schema.name());
}

bool blocks_host(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  if (schema.name() == "aten::copy_") return is_blocking_copy(arguments);
  if (kOfUnknownSize.contains(schema.name())) return true;
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return !is_of_tensors(*result.type()); });
}

}  // namespace kolo::test
