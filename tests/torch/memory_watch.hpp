#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include "torch/layer_units.hpp"

namespace kolo::test {

/// Counts the units of float32 parameters that have memory, at the beginning and end of every
/// operator, and fills memory that a unit has lost with NaN. Only one instance may exist at a time.
class MemoryWatch {
 public:
  using Unit = std::vector<at::Tensor>;

  explicit MemoryWatch(std::vector<Unit> units) : units_(std::move(units)) {
    current = this;
    callback_ = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          if (current != nullptr) current->look();
          return nullptr;
        },
        [](const at::RecordFunction&, at::ObserverContext*) {
          if (current != nullptr) current->look();
        }));
  }
  ~MemoryWatch() {
    current = nullptr;
    at::removeCallback(callback_);
  }
  MemoryWatch(const MemoryWatch&) = delete;  // registers a callback of LibTorch
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  std::size_t max_units = 0;
  std::size_t poisoned = 0;

 private:
  using Memory = std::map<std::byte*, std::size_t>;  // bytes by address

  /// Whether another unit has been gathered into this memory.
  static bool overlaps(const Memory& memory, const std::byte* begin, std::size_t bytes) {
    return std::ranges::any_of(memory, [&](const auto& range) {
      return range.first < begin + bytes && begin < range.first + range.second;
    });
  }
  void look() {
    std::size_t units = 0;
    Memory memory;
    for (const Unit& unit : units_) {
      bool is_there = false;
      for (const at::Tensor& parameter : unit) {
        if (!layer_units::is_in_memory(parameter)) continue;
        is_there = true;
        memory[static_cast<std::byte*>(parameter.data_ptr())] = parameter.nbytes();
      }
      if (is_there) ++units;
    }
    max_units = std::max(max_units, units);
    for (const auto& [address, bytes] : known_) {
      if (overlaps(memory, address, bytes)) continue;
      std::fill_n(reinterpret_cast<float*>(address), bytes / sizeof(float),
                  std::numeric_limits<float>::quiet_NaN());
      ++poisoned;
    }
    known_ = memory;
  }

  static inline MemoryWatch* current = nullptr;
  std::vector<Unit> units_;
  at::CallbackHandle callback_ = 0;
  Memory known_;
};

}  // namespace kolo::test
