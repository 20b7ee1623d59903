#include "train/tensors/deferred.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/StringUtil.h>

#include "base/held_signal.hpp"
#include "comm/file_descriptor.hpp"
#include "comm/shared_memory.hpp"
#include "kolo/agreement.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/deferred.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/run_or_throw_on_all.hpp"

namespace kolo::train {
namespace {

/// The deleter that identifies deferred storages.
void release_nothing(void*) {}

}  // namespace

void defer_storage(const at::Tensor& tensor, const std::string& name) {
  set_refusal(tensor.storage(),
              "kolo::deferred: parameter '" + name +
                  "' has no elements on this rank before an optimizer of its model is wrapped. "
                  "Wrap it in a DistributedOptimizer first.");
  take_elements(tensor.storage(), release_nothing);
}

bool is_deferred(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && has_deleter(tensor.storage(), release_nothing);
}

void allocate_deferred(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!is_deferred(tensor)) continue;  // it shares a storage with an earlier tensor
    set_elements(tensor.storage(), c10::GetCPUAllocator()->allocate(tensor.storage().nbytes()));
  }
}

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
    const Lock guard(lock_);
    if (scopes_++ > 0) return;
    usual_ = c10::GetCPUAllocator();
    replace(this);
  }
  void remove() {
    const Lock guard(lock_);
    if (--scopes_ == 0) replace(usual_);
  }

 private:
  ConstructionAllocator() = default;

  static void replace(c10::Allocator* allocator) {
    c10::SetCPUAllocator(allocator);
    // That had no effect if the program has set an allocator of higher priority.
    if (c10::GetCPUAllocator() != allocator) c10::SetCPUAllocator(allocator, 255);
  }

  Mutex lock_;
  int scopes_ KOLO_GUARDED_BY(lock_) = 0;
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
  const Lock guard(lock_);
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
  const Lock guard(memory.lock_);
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
  const Lock guard(lock_);
  std::vector<std::span<std::byte>> blocks;
  for (const auto& [number, block] : blocks_) {
    if (!excluded.contains(block.bytes.data())) blocks.push_back(block.bytes);
  }
  return blocks;
}

void ConstructionMemory::make_real(std::span<std::byte> block) {
  const Lock guard(lock_);
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

namespace {

using Blocks = std::vector<std::span<std::byte>>;

const char* const kWhat = "kolo::deferred";

std::string random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard guard(generator.mutex());
  const at::Tensor state = generator.get_state();
  const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  return std::to_string(std::hash<std::string_view>()(bytes));
}

/// Random draws must not depend on values of tensors, which differ on most ranks.
void require_same_draws(ProcessSet& world, const std::string& before) {
  const std::vector<std::string> all = allgather_object(
      before + " " + random_state(), {.name = "deferred.draws", .process_set = &world});
  const auto state_before = [](const std::string& both) { return both.substr(0, both.find(' ')); };
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0] || state_before(all[rank]) != state_before(all[0])) continue;
    throw InvalidArgument(std::string(kWhat) + ": the constructor has drawn other random numbers " +
                          "on rank " + std::to_string(rank) +
                          " than on rank 0. It must not decide by the values of tensors, which "
                          "ranks do not have: construct such a model without kolo::deferred.");
  }
}

std::vector<NamedValue> facts_of(const torch::nn::Module& module, const Blocks& others) {
  std::vector<NamedValue> facts;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    facts.push_back({"parameter", c10::str("'", parameter.key(), "', ", tensor.scalar_type(), " ",
                                           tensor.sizes())});
  }
  facts.push_back({"number of other tensors", std::to_string(others.size())});
  for (const auto& bytes : others) {
    facts.push_back({"another tensor", "of " + std::to_string(bytes.size()) + " bytes"});
  }
  return facts;
}

}  // namespace

void construct_deferred(const std::function<const torch::nn::Module&()>& construct) {
  Runtime& runtime = Runtime::current();
  ProcessSet& world = runtime.world();
  const bool keeps_parameters = runtime.local_rank() == 0;
  const auto memory = std::make_shared<ConstructionMemory>(
      keeps_parameters ? ConstructionMemory::Kind::Real : ConstructionMemory::Kind::Scratch);
  const std::string before = random_state();
  const torch::nn::Module* made = nullptr;
  run_or_throw_on_all(world, "deferred.constructed", kWhat, "the constructor", [&] {
    const ConstructionMemory::Scope scope(memory);
    made = &construct();
  });
  const torch::nn::Module& module = *made;
  require_same_draws(world, before);
  const Blocks others = memory->blocks(module.parameters());
  check_agreement(kWhat, facts_of(module, others), {},
                  {.name = "deferred.agreement", .process_set = &world});
  for (const auto& parameter : module.named_parameters()) {
    if (keeps_parameters || !ConstructionMemory::has(parameter.value())) continue;
    defer_storage(parameter.value(), parameter.key());
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    memory->make_real(others[i]);
    broadcast(
        {others[i].data(), DType::UInt8, {static_cast<std::int64_t>(others[i].size())}, Device{}},
        0, {.name = "deferred." + std::to_string(i), .process_set = &world});
  }
}

bool is_constructed(const at::Tensor& tensor) {
  return is_deferred(tensor) || ConstructionMemory::has(tensor);
}

void fill_deferred(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                   ProcessSet& set) {
  std::vector<std::pair<std::string, at::Tensor>> constructed;
  std::vector<at::Tensor> deferred;
  for (const auto& [name, tensor] : tensors) {
    if (!is_constructed(tensor)) continue;
    constructed.emplace_back(name, tensor);
    if (is_deferred(tensor)) deferred.push_back(tensor);
  }
  allocate_deferred(deferred);
  for (const auto& [name, tensor] : constructed) {
    if (is_constructed(tensor)) make_own_copy(tensor);  // so that is_constructed() becomes false
  }
  broadcast_parameters(constructed, set.ranks().front(), &set);
}

}  // namespace kolo::train

namespace kolo {

bool is_deferred(const torch::nn::Module& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  return std::ranges::any_of(parameters, train::is_constructed);
}

}  // namespace kolo
