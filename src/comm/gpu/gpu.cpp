#include "comm/gpu/gpu.hpp"

#include <atomic>
#include <cstdint>
#include <exception>

#include "base/convert.hpp"
#include "base/log.hpp"
#include "base/scale_integer.hpp"

namespace kolo::comm {
namespace {

std::atomic<void (*)()> release_cached{nullptr};

}  // namespace

void set_release_of_cached_memory(void (*release)()) { release_cached = release; }

void release_cached_memory() noexcept try {
  if (auto* const release = release_cached.load()) release();
} catch (const std::exception& error) {  // as while LibTorch captures a graph
  KOLO_LOG(Warn) << "memory that LibTorch caches could not be released: " << error.what();
}

Scalar scalar_of(DType dtype, double value) {
  alignas(8) Scalar bytes{};
  if (dtype == DType::Bool) {
    bytes[0] = value != 0 ? std::byte{1} : std::byte{0};
  } else if (is_floating(dtype)) {
    base::convert(DType::Float64, &value, dtype, bytes.data(), 1);
  } else {
    const std::int64_t integer = base::scale_integer<std::int64_t>(1, value);
    base::convert(DType::Int64, &integer, dtype, bytes.data(), 1);
  }
  return bytes;
}

}  // namespace kolo::comm
