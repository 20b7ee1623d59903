#include "runtime/protocol/request.hpp"

#include <optional>

#include "base/text.hpp"

namespace kolo::runtime {
namespace {

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

std::string text_of(JoinDivisor divisor) {
  return divisor == JoinDivisor::World ? "all ranks" : "active ranks";
}

std::string reduction_of(const Request& request) {
  return request.op == ReduceOp::Custom ? request.custom : std::string(name_of(request.op));
}

template <class Value>
std::string name_text(Value value) {
  return std::string(name_of(value));
}

std::optional<Difference> operation_difference(const Request& first, const Request& second) {
  if (first.purpose != second.purpose) {
    return Difference{"purpose", or_none(first.purpose), or_none(second.purpose)};
  }
  if (first.collective != second.collective) {
    return Difference{"operation", name_text(first.collective), name_text(second.collective)};
  }
  if (first.placement != second.placement) {
    return Difference{"shared-memory placement", or_none(first.placement),
                      or_none(second.placement)};
  }
  return {};
}

Difference tensor_difference(const Request& first, const Request& second) {
  const std::size_t count = first.tensors.size();
  if (count != second.tensors.size()) {
    return {"number of tensors in the group", std::to_string(count),
            std::to_string(second.tensors.size())};
  }
  std::size_t i = 0;
  while (first.tensors[i] == second.tensors[i]) ++i;
  const TensorType& a = first.tensors[i];
  const TensorType& b = second.tensors[i];
  std::string which;
  if (count > 1) which = " of tensor " + std::to_string(i) + " of the group";
  if (a.dtype != b.dtype) {
    return {"dtype" + which, name_text(a.dtype), name_text(b.dtype)};
  }
  return {"shape" + which, list_of(a.shape), list_of(b.shape)};
}

std::optional<Difference> reduction_difference(const Request& first, const Request& second) {
  if (first.op != second.op || first.custom != second.custom) {
    return Difference{"reduction", reduction_of(first), reduction_of(second)};
  }
  if (first.prescale != second.prescale) {
    return Difference{"prescale factor", exact_text(first.prescale), exact_text(second.prescale)};
  }
  if (first.postscale != second.postscale) {
    return Difference{"postscale factor", exact_text(first.postscale),
                      exact_text(second.postscale)};
  }
  if (first.join_divisor != second.join_divisor) {
    return Difference{"join divisor", text_of(first.join_divisor), text_of(second.join_divisor)};
  }
  return {};
}

/// A difference in where the tensors lie or how they are sent.
std::optional<Difference> transport_difference(const Request& first, const Request& second) {
  if (first.device != second.device) {
    return Difference{"device", name_text(first.device), name_text(second.device)};
  }
  if (first.compression != second.compression) {
    return Difference{"compression", first.compression, second.compression};
  }
  if (first.compression_scope != second.compression_scope) {
    return Difference{"compression scope", name_text(first.compression_scope),
                      name_text(second.compression_scope)};
  }
  return {};
}

}  // namespace

std::size_t TensorType::count() const {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

std::size_t TensorType::size_bytes() const { return count() * size_of(dtype); }

std::size_t Request::size_bytes() const {
  std::size_t bytes = 0;
  for (const TensorType& tensor : tensors) bytes += tensor.size_bytes();
  return bytes;
}

std::string describe(const Request& request) {
  return std::string(name_of(request.collective)) + " '" + request.name + "'";
}

bool can_fuse(const Request& first, const Request& second) {
  const auto is_single = [](const Request& request) {
    return request.fusible && request.collective == Collective::AllReduce &&
           request.op != ReduceOp::Adasum && request.tensors.size() == 1;
  };
  return is_single(first) && is_single(second) &&
         first.tensors[0].dtype == second.tensors[0].dtype && first.op == second.op &&
         first.custom == second.custom && first.prescale == second.prescale &&
         first.postscale == second.postscale && first.join_divisor == second.join_divisor &&
         first.device == second.device && first.compression == second.compression &&
         first.compression_scope == second.compression_scope;
}

Difference first_difference(const Request& first, const Request& second) {
  if (auto difference = operation_difference(first, second)) return *difference;
  if (first.tensors != second.tensors) return tensor_difference(first, second);
  if (auto difference = reduction_difference(first, second)) return *difference;
  if (first.root != second.root) {
    return {"root rank", std::to_string(first.root), std::to_string(second.root)};
  }
  if (auto difference = transport_difference(first, second)) return *difference;
  if (first.rows != second.rows) {
    return {"rows of each rank", list_of(first.rows), list_of(second.rows)};
  }
  if (first.members != second.members) {
    return {"list of ranks", list_of(first.members), list_of(second.members)};
  }
  if (first.set_number != second.set_number) {
    return {"number of the process set", std::to_string(first.set_number),
            std::to_string(second.set_number)};
  }
  return {"fusion", first.fusible ? "allowed" : "not allowed",
          second.fusible ? "allowed" : "not allowed"};
}

}  // namespace kolo::runtime
