#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/mutex.hpp"
#include "kolo/process_set.hpp"

namespace kolo::train {

/// Frees the elements of a parameter until it is wrapped. Until then, every access to them throws,
/// naming `name`.
void defer_storage(const at::Tensor& tensor, const std::string& name);

/// Whether the tensor's elements were freed and not restored.
bool is_deferred(const at::Tensor& tensor);

/// Allocates uninitialized memory for deferred tensors.
void allocate_deferred(const std::vector<at::Tensor>& tensors);

/// Memory blocks of the tensors that a thread creates while a model is constructed.
class ConstructionMemory {
 public:
  /// Real: memory as usual. Scratch: a large block maps the same few pages over and over, so that
  /// it costs a fraction of its size; its contents are lost.
  enum class Kind : std::uint8_t { Real, Scratch };

  explicit ConstructionMemory(Kind kind) : kind_(kind) {}
  ConstructionMemory(const ConstructionMemory&) = delete;  // blocks refer to it
  ConstructionMemory& operator=(const ConstructionMemory&) = delete;

  /// While it lives, tensors that this thread creates on the CPU use blocks of `memory`.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(const std::shared_ptr<ConstructionMemory>& memory);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  /// The blocks that tensors still use, in order of creation, without those of `others`.
  std::vector<std::span<std::byte>> blocks(const std::vector<at::Tensor>& others) const;
  /// Gives a scratch block its own pages, filled with zeros. No effect on other blocks.
  void make_real(std::span<std::byte> block);
  /// Whether the tensor is in a block of any construction.
  static bool has(const at::Tensor& tensor);

 private:
  friend class ConstructionAllocator;
  struct Block {
    std::span<std::byte> bytes;
    std::size_t mapped_bytes = 0;  // of a scratch block
    at::DataPtr usual;             // of a real one
  };
  struct Owner {
    std::shared_ptr<ConstructionMemory> memory;
    std::int64_t number;
  };
  static void release(void* owner);
  at::DataPtr allocate(std::size_t bytes, at::Allocator& usual,
                       const std::shared_ptr<ConstructionMemory>& self);
  bool map_scratch(std::size_t bytes, Block& block) KOLO_REQUIRES(lock_);

  const Kind kind_;
  mutable Mutex lock_;  // blocks may be freed on any thread
  std::map<std::int64_t, Block> blocks_ KOLO_GUARDED_BY(lock_);
  std::int64_t allocations_ KOLO_GUARDED_BY(lock_) = 0;
  std::size_t mappings_ KOLO_GUARDED_BY(lock_) = 0;
};

/// Whether kolo::deferred created the tensor, and nothing has moved it since; the same on ranks
/// that keep its elements and on others.
bool is_constructed(const at::Tensor& tensor);

/// Gives each rank the elements of the tensors that kolo::deferred created, with the values of the
/// set's first rank. Collective over the set if there are any.
void fill_deferred(const std::vector<std::pair<std::string, at::Tensor>>& tensors, ProcessSet& set);

}  // namespace kolo::train
