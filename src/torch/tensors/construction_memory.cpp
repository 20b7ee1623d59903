#include "torch/tensors/construction_memory.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <sys/mman.h>
#include <unordered_set>
#include <utility>

#include <c10/core/CPUAllocator.h>

#include "base/held_signal.hpp"
#include "comm/file_descriptor.hpp"
#include "comm/shared_memory.hpp"
#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

// Smaller blocks are cheaper than mappings.
constexpr std::size_t kMinScratchBytes = std::size_t{64} << 10;
// Of the 65530 mappings that Linux allows a process by default.
constexpr std::size_t kMaxMappings = 20000;
constexpr std::size_t kMappingsPerBlock = 32;

thread_local std::shared_ptr<ConstructionMemory> constructing;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + comm::page_bytes() - 1) / comm::page_bytes() * comm::page_bytes();
}

/// Maps the file repeatedly from `begin` on.
bool map_repeatedly(int file, std::size_t file_bytes, std::byte* begin, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += file_bytes) {
    const std::size_t count = std::min(file_bytes, bytes - offset);
    if (::mmap(begin + offset, count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
        MAP_FAILED) {
      return false;
    }
  }
  return true;
}

}  // namespace

/// Uses LibTorch's allocator, except in threads that construct a model. Lives as long as the
/// process, since storages refer to it.
class ConstructionAllocator final : public c10::Allocator {
 public:
  static ConstructionAllocator& instance() {
    static auto* const allocator = new ConstructionAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::Allocator& usual = *usual_.load();
    if (!constructing || bytes == 0) return usual.allocate(bytes);
    return constructing->allocate(bytes, usual, constructing);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void install() {
    const std::lock_guard guard(lock_);
    if (scopes_++ > 0) return;
    usual_ = c10::GetCPUAllocator();
    replace(this);
  }
  void remove() {
    const std::lock_guard guard(lock_);
    if (--scopes_ == 0) replace(usual_);
  }

 private:
  ConstructionAllocator() = default;

  static void replace(c10::Allocator* allocator) {
    c10::SetCPUAllocator(allocator);
    // That had no effect if the program has set an allocator of higher priority.
    if (c10::GetCPUAllocator() != allocator) c10::SetCPUAllocator(allocator, 255);
  }

  std::mutex lock_;
  int scopes_ = 0;
  std::atomic<c10::Allocator*> usual_ = c10::GetCPUAllocator();
};

ConstructionMemory::Scope::Scope(const std::shared_ptr<ConstructionMemory>& memory) {
  ConstructionAllocator::instance().install();
  constructing = memory;
}

ConstructionMemory::Scope::~Scope() {
  constructing.reset();
  ConstructionAllocator::instance().remove();
}

at::DataPtr ConstructionMemory::allocate(std::size_t bytes, at::Allocator& usual,
                                         const std::shared_ptr<ConstructionMemory>& self) {
  const std::lock_guard guard(lock_);
  Block block;
  if (kind_ == Kind::Real || bytes < kMinScratchBytes || !map_scratch(bytes, block)) {
    block.usual = usual.allocate(bytes);
    block.bytes = {static_cast<std::byte*>(block.usual.get()), bytes};
  }
  void* const data = block.bytes.data();
  const std::int64_t number = allocations_++;
  blocks_.emplace(number, std::move(block));
  return {data, new Owner{self, number}, &release, c10::Device(c10::kCPU)};
}

bool ConstructionMemory::map_scratch(std::size_t bytes, Block& block) {
  if (mappings_ + kMappingsPerBlock > kMaxMappings) return false;
  const std::size_t file_bytes = std::max(kMinScratchBytes, whole_pages(bytes / kMappingsPerBlock));
  const std::size_t mapped_bytes = whole_pages(bytes);
  const HeldSignal too_large(SIGXFSZ);
  const comm::FileDescriptor file(::memfd_create("kolo-deferred", MFD_CLOEXEC));
  if (!file.is_open() || ::ftruncate(file.get(), static_cast<off_t>(file_bytes)) != 0) return false;
  void* const range =
      ::mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return false;
  auto* const begin = static_cast<std::byte*>(range);
  if (!map_repeatedly(file.get(), file_bytes, begin, mapped_bytes)) {
    ::munmap(range, mapped_bytes);
    return false;
  }
  mappings_ += kMappingsPerBlock;
  block.bytes = {begin, bytes};
  block.mapped_bytes = mapped_bytes;
  return true;
}

void ConstructionMemory::release(void* owner) {
  const std::unique_ptr<Owner> own(static_cast<Owner*>(owner));
  ConstructionMemory& memory = *own->memory;
  const std::lock_guard guard(memory.lock_);
  const auto found = memory.blocks_.find(own->number);
  Block& block = found->second;
  if (block.mapped_bytes > 0) {
    ::munmap(block.bytes.data(), block.mapped_bytes);
    memory.mappings_ -= kMappingsPerBlock;
  }
  memory.blocks_.erase(found);
}

std::vector<std::span<std::byte>> ConstructionMemory::blocks(
    const std::vector<at::Tensor>& others) const {
  std::unordered_set<const void*> excluded;
  for (const at::Tensor& tensor : others) {
    if (has(tensor)) excluded.insert(tensor.storage().data());
  }
  const std::lock_guard guard(lock_);
  std::vector<std::span<std::byte>> blocks;
  for (const auto& [number, block] : blocks_) {
    if (!excluded.contains(block.bytes.data())) blocks.push_back(block.bytes);
  }
  return blocks;
}

void ConstructionMemory::make_real(std::span<std::byte> block) {
  const std::lock_guard guard(lock_);
  const auto found = std::ranges::find_if(
      blocks_, [&](const auto& entry) { return entry.second.bytes.data() == block.data(); });
  const std::size_t mapped_bytes = found->second.mapped_bytes;
  if (mapped_bytes == 0) return;
  if (::mmap(block.data(), mapped_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw BackendError("kolo::deferred: cannot map " + std::to_string(mapped_bytes) + " bytes");
  }
}

bool ConstructionMemory::has(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_deleter() ==
             &release;
}

}  // namespace kolo::tensors
