#include "kolo/torch/autocast.hpp"

#include <string>

#include <ATen/autocast_mode.h>

#include "kolo/error.hpp"

namespace kolo {
namespace {

c10::DeviceType checked(c10::ScalarType dtype, c10::DeviceType device) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw InvalidArgument("Autocast: to " + std::string(c10::toString(dtype)) +
                          "; it must be BFloat16 or Half");
  }
  if (device != at::kCPU && device != at::kCUDA) {
    throw InvalidArgument("Autocast: on " + c10::DeviceTypeName(device) +
                          "; it must be CPU or CUDA");
  }
  return device;
}

}  // namespace

Autocast::Autocast(c10::ScalarType dtype, c10::DeviceType device, bool enabled, bool cache_enabled)
    : device_(checked(dtype, device)),
      outer_dtype_(at::autocast::get_autocast_dtype(device)),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      was_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::increment_nesting();
  change_dtype(dtype);
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_cache_enabled(cache_enabled);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  change_dtype(outer_dtype_);
  at::autocast::set_autocast_cache_enabled(was_cache_enabled_);
}

/// LibTorch looks up cached casts by parameter, not by dtype.
void Autocast::change_dtype(c10::ScalarType dtype) const {
  if (at::autocast::get_autocast_dtype(device_) == dtype) return;
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, dtype);
}

}  // namespace kolo
