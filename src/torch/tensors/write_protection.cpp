#include "torch/tensors/write_protection.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

#include "base/intentional_leak.hpp"
#include "comm/shared_segment.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"

namespace kolo::tensors {
namespace {

/// A parameter's addresses.
struct Extent {
  std::uintptr_t begin;
  std::uintptr_t end;
  std::size_t element_bytes;
  std::string text;  ///< error text up to the number of the written element
};

using Pages = std::span<std::byte>;

struct ProtectedMemory {
  std::weak_ptr<void> owner;  // another mapping may reuse the addresses afterwards
  std::vector<Pages> pages;
  std::vector<Extent> parameters;
};

struct Registry {
  std::mutex lock;
  int writers = 0;  // live instances of WritesAllowed
  std::vector<ProtectedMemory> memories;
};

Registry& registry() {
  static Registry registry;
  return registry;
}

// --- the signal handler ---

/// Sorted by address, for the signal handler, which must not lock.
using Table = std::vector<Extent>;
std::atomic<const Table*> current_table = nullptr;
struct sigaction previous_action{};

const Extent* find(const Table& table, std::uintptr_t address) {
  const auto after = std::upper_bound(
      table.begin(), table.end(), address,
      [](std::uintptr_t place, const Extent& extent) { return place < extent.begin; });
  if (after == table.begin()) return nullptr;
  const Extent& extent = *(after - 1);
  return address < extent.end ? &extent : nullptr;
}

void print(std::string_view text) {
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
}

void report(const Extent& extent, std::uintptr_t address) {
  std::array<char, 24> digits{};
  char* const end = std::to_chars(digits.data(), digits.data() + digits.size(),
                                  (address - extent.begin) / extent.element_bytes)
                        .ptr;
  print(extent.text);
  print({digits.data(), static_cast<std::size_t>(end - digits.data())});
  print(
      " outside step(). With shard = full the ranks of a node share one copy of it, to which each "
      "would write. Write in full_parameters(), and load by load().\n");
}

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((static_cast<unsigned>(previous_action.sa_flags) & SA_RESETHAND) != 0) {
    struct sigaction usual{};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGSEGV, &usual, nullptr);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    return previous_action.sa_sigaction(signal, info, context);
  }
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    return previous_action.sa_handler(signal);
  }
  ::sigaction(SIGSEGV, &previous_action, nullptr);
  if (info->si_code <= 0) ::raise(signal);  // sent by a process: unlike a fault, it does not recur
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const Table* const table = current_table.load(std::memory_order_acquire);
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const Extent* const extent =
      info->si_code == SEGV_ACCERR && table != nullptr ? find(*table, address) : nullptr;
  if (extent == nullptr) return pass_on(signal, info, context);
  report(*extent, address);
  ::sigaction(SIGSEGV, &previous_action, nullptr);  // the write is repeated, and ends the process
}

void install_handler() {
  static const bool is_installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGSEGV, &action, &previous_action) == 0;
  }();
  if (!is_installed) throw BackendError("KOLO_PROTECT_PARAMETERS: sigaction failed");
}

// --- pages ---

void set_protection(const ProtectedMemory& memory, int protection) {
  const std::shared_ptr<void> owner = memory.owner.lock();  // keeps it mapped
  if (!owner) return;
  for (const Pages& pages : memory.pages) {
    if (::mprotect(pages.data(), pages.size(), protection) == 0) continue;
    throw BackendError(std::string("KOLO_PROTECT_PARAMETERS: mprotect: ") + std::strerror(errno));
  }
}

/// The pages of `parameters`, which are sorted by address. `memory` consists of whole pages.
std::vector<Pages> pages_of(const std::vector<Extent>& parameters, const SharedBuffer& memory) {
  const std::size_t page = comm::page_bytes();
  const auto data = reinterpret_cast<std::uintptr_t>(memory.data());
  std::vector<Pages> pages;
  std::size_t end = 0;  // of the last pages
  for (const Extent& extent : parameters) {
    const std::size_t own_begin = (extent.begin - data) / page * page;
    const bool is_adjacent = !pages.empty() && own_begin <= end;
    const std::size_t begin = is_adjacent ? end - pages.back().size() : own_begin;
    end = (extent.end - data + page - 1) / page * page;
    if (is_adjacent) pages.pop_back();
    pages.emplace_back(memory.data() + begin, end - begin);
  }
  return pages;
}

void publish_table(const std::vector<ProtectedMemory>& memories) {
  auto table = std::make_unique<Table>();
  for (const ProtectedMemory& memory : memories) {
    table->insert(table->end(), memory.parameters.begin(), memory.parameters.end());
  }
  std::ranges::sort(*table, {}, &Extent::begin);
  current_table.store(table.get(), std::memory_order_release);
  leak_intentionally(std::move(table));  // a handler may still read it
}

}  // namespace

void protect_writes(const SharedBuffer& memory,
                    const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                    const ProcessSet& sharers) {
  const Runtime& runtime = sharers.runtime();
  if (!runtime.config().protect_parameters || sharers.size() == 1) return;
  ProtectedMemory added{.owner = memory.owner(), .pages = {}, .parameters = {}};
  for (const auto& [name, tensor] : parameters) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    added.parameters.push_back({begin, begin + tensor.nbytes(), tensor.itemsize(),
                                "[kolo rank " + std::to_string(runtime.rank()) +
                                    "] error: parameter '" + name + "' was written at element "});
  }
  std::ranges::sort(added.parameters, {}, &Extent::begin);
  added.pages = pages_of(added.parameters, memory);
  install_handler();
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  std::erase_if(all.memories, [](const ProtectedMemory& old) { return old.owner.expired(); });
  all.memories.push_back(std::move(added));
  publish_table(all.memories);
  if (all.writers == 0) set_protection(all.memories.back(), PROT_READ);
}

WritesAllowed::WritesAllowed() {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  if (all.writers == 0) {
    for (const ProtectedMemory& memory : all.memories) {
      set_protection(memory, PROT_READ | PROT_WRITE);
    }
  }
  ++all.writers;
}

WritesAllowed::~WritesAllowed() {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  if (--all.writers > 0) return;
  for (const ProtectedMemory& memory : all.memories) {
    try {
      set_protection(memory, PROT_READ);
    } catch (const BackendError&) {  // then writes are not detected
    }
  }
}

}  // namespace kolo::tensors
