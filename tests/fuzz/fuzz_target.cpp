#include "fuzz/fuzz_target.hpp"

#include <cstdio>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define KOLO_WITH_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KOLO_WITH_ASAN
#endif
#endif
#ifdef KOLO_WITH_ASAN
// Declared in sanitizer/allocator_interface.h, which g++ does not install.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*,
                                                                           std::size_t),
                                                         void (*on_free)(const volatile void*));
#endif

namespace {

constexpr std::size_t kUnlimited = static_cast<std::size_t>(-1);

thread_local std::size_t allocatable = kUnlimited;

void count_allocation(std::size_t size) {
  if (allocatable == kUnlimited) return;
  if (size > allocatable) {
    allocatable = kUnlimited;
    kolo::fuzz::fail("so small an input must not allocate that much: " + std::to_string(size));
  }
  allocatable -= size;
}

}  // namespace

namespace kolo::fuzz {

void fail(const std::string& what) {
  std::fprintf(stderr, "the invariant does not hold: %s\n", what.c_str());
  std::abort();
}

AllocationBudget::AllocationBudget(std::size_t bytes) { allocatable = bytes; }
AllocationBudget::~AllocationBudget() { allocatable = kUnlimited; }

}  // namespace kolo::fuzz

#ifdef KOLO_WITH_ASAN

namespace {

[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t size) { count_allocation(size); },
    [](const volatile void*) {});

}  // namespace

#else

// The array and nothrow variants call these.

void* operator new(std::size_t size) {
  count_allocation(size);
  if (void* const memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif
