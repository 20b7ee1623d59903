#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "kolo/collectives.hpp"

namespace kolo::tensors {

/// Shared by the units of an optimizer: the numbers of their collectives, so that a rank that calls
/// a different one causes an immediate error, and callbacks to the optimizer.
class UnitCalls {
 public:
  explicit UnitCalls(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Options of the next collective, whose purpose ranks compare.
  OperationOptions next(OperationOptions options, std::string purpose) {
    options.name = prefix_ + "." + std::to_string(number_++ % kNumbers);
    options.purpose = std::move(purpose);
    return options;
  }
  /// A step has ended: the next one reuses the names.
  void restart() { number_ = 0; }

  // Empty once the optimizer is destroyed.
  /// Called before a unit of the batch is gathered for this rank's own use.
  std::function<void(const std::string& batch, std::size_t unit, std::size_t slot)> before_gather;
  /// Called on all ranks after a mismatch: whether it happened because some ranks have joined. The
  /// collective is then repeated, and before_gather() announces it to them.
  std::function<bool()> find_joined;

 private:
  static constexpr std::size_t kNumbers = 4096;  // bounds the number of names, which are remembered

  const std::string prefix_;
  std::size_t number_ = 0;
};

}  // namespace kolo::tensors
