#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// Common parts of the fuzz targets. A target is one file <what>_fuzz.cpp with
/// LLVMFuzzerTestOneInput and `seeds`. Clang links it with libFuzzer (preset "fuzz"); all other
/// builds link it with run_corpus.cpp, which runs the corpus and a fixed number of mutations of it.
namespace kolo::fuzz {

/// Initial inputs besides the files of the corpus: those that depend on a format's version or a
/// class's layout. Every target defines them.
std::vector<std::string> seeds();

/// Ends the program because an invariant does not hold.
[[noreturn]] void fail(const std::string& what);

inline void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// During its lifetime this thread may allocate at most this many bytes in total, freed or not.
/// Beyond that the program ends: a reader of damaged input must not trust sizes in it.
class AllocationBudget {
 public:
  explicit AllocationBudget(std::size_t bytes);
  ~AllocationBudget();
  AllocationBudget(const AllocationBudget&) = delete;  // one at a time
  AllocationBudget& operator=(const AllocationBudget&) = delete;
};

/// Reads numbers from an input; zeros after its end.
class ByteSource {
 public:
  ByteSource(const std::uint8_t* data, std::size_t size) : rest_(text_of(data, size)) {}

  bool is_empty() const { return rest_.empty(); }

  template <class Number>
  Number take() {
    static_assert(std::is_integral_v<Number> && !std::is_same_v<Number, bool>);
    Number number = 0;
    const std::size_t size = rest_.size() < sizeof number ? rest_.size() : sizeof number;
    if (size > 0) std::memcpy(&number, rest_.data(), size);
    rest_.remove_prefix(size);
    return number;
  }
  int take_below(int limit) { return take<std::uint8_t>() % limit; }
  bool take_bool() { return take_below(2) == 1; }

 private:
  std::string_view rest_;
};

}  // namespace kolo::fuzz
