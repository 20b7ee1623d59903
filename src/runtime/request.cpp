#include "runtime/request.hpp"

#include <sstream>

namespace kolo::runtime {
namespace {

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string text_of(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

}  // namespace

std::size_t Request::size_bytes() const {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count * size_of(dtype);
}

std::string describe(const Request& request) {
  return std::string(name_of(request.collective)) + " '" + request.name + "'";
}

bool can_fuse(const Request& first, const Request& second) {
  return first.fusible && second.fusible && first.collective == Collective::AllReduce &&
         second.collective == Collective::AllReduce && first.dtype == second.dtype &&
         first.op == second.op && first.prescale == second.prescale &&
         first.postscale == second.postscale && first.device == second.device &&
         first.compression == second.compression;
}

Difference first_difference(const Request& first, const Request& second) {
  const auto named = [](auto value) { return std::string(name_of(value)); };
  if (first.collective != second.collective) {
    return {"operation", named(first.collective), named(second.collective)};
  }
  if (first.dtype != second.dtype) return {"dtype", named(first.dtype), named(second.dtype)};
  if (first.shape != second.shape) return {"shape", text_of(first.shape), text_of(second.shape)};
  if (first.op != second.op) return {"reduction", named(first.op), named(second.op)};
  if (first.prescale != second.prescale) {
    return {"prescale factor", text_of(first.prescale), text_of(second.prescale)};
  }
  if (first.postscale != second.postscale) {
    return {"postscale factor", text_of(first.postscale), text_of(second.postscale)};
  }
  if (first.root != second.root) {
    return {"root rank", std::to_string(first.root), std::to_string(second.root)};
  }
  if (first.device != second.device) return {"device", named(first.device), named(second.device)};
  if (first.compression != second.compression) {
    return {"compression", first.compression, second.compression};
  }
  if (first.placement != second.placement) {
    return {"shared-memory placement", or_none(first.placement), or_none(second.placement)};
  }
  return {"fusion", first.fusible ? "allowed" : "not allowed",
          second.fusible ? "allowed" : "not allowed"};
}

}  // namespace kolo::runtime
