#include "runtime/device/device_staging.hpp"

namespace kolo::runtime {

void DeviceStaging::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  if (memory_ != nullptr) outgrown_.push_back(std::move(memory_));
  memory_ = gpu_.allocate(bytes);
  bytes_ = bytes;
}

}  // namespace kolo::runtime
