#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/shared_buffer.hpp"
#include "programs/program.hpp"

namespace kolo::programs {

/// Plain memory between guard bytes.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t size_bytes, std::size_t shift_bytes);

  std::byte* data() { return memory_.data() + begin_; }
  std::vector<std::byte> content();
  bool is_intact() const;

 private:
  std::size_t begin_;
  std::size_t size_bytes_;
  std::vector<std::byte> memory_;
};

/// One rank's inputs and outputs of one operation.
class OperationMemory : public std::enable_shared_from_this<OperationMemory> {
 public:
  /// `operation` is the variant that this rank submits, and must outlive this object.
  OperationMemory(const Program& program, const Operation& operation, int rank,
                  const SharedBuffer* buffer);

  TensorView input(std::size_t tensor);
  TensorView output(std::size_t tensor);
  AllocateRows allocate(std::size_t tensor);
  const std::optional<SharedBuffer>& buffer() const { return buffer_; }
  std::size_t tensor_count() const { return tensors_.size(); }

  std::vector<std::byte> result(std::size_t tensor);
  const std::vector<std::int64_t>& rows(std::size_t tensor) const { return tensors_[tensor].rows; }
  /// An error text if anything besides the results was written; otherwise empty.
  std::string damage();

  /// An owner whose destruction shows that the operation has released the memory.
  std::shared_ptr<void> make_owner();
  bool is_released() const { return is_released_.load(std::memory_order_acquire); }

 private:
  struct TensorMemory {
    std::unique_ptr<GuardedBytes> input;
    std::unique_ptr<GuardedBytes> output;    // null: in place
    std::vector<std::byte> original;         // of the input
    std::size_t output_offset = 0;           // in place: offset in the input
    std::vector<std::int64_t> output_shape;  // all but all-gather and all-to-all
    std::vector<std::int64_t> input_shape;
    std::vector<std::int64_t> rows;
  };

  TensorMemory make_tensor(const Program& program, std::size_t index) const;
  std::size_t output_bytes(std::size_t tensor) const;

  const Operation& operation_;
  int rank_;
  std::optional<SharedBuffer> buffer_;
  std::vector<TensorMemory> tensors_;
  std::atomic<bool> is_released_{false};
};

}  // namespace kolo::programs
