#include "gpt/evaluation_windows.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "gpt/windows.hpp"

namespace gpt {
namespace {

/// Hash of the last `length` bytes that were added: a polynomial modulo 2^64.
class RollingHash {
 public:
  explicit RollingHash(std::size_t length) {
    for (std::size_t i = 0; i < length; ++i) leaving_factor_ *= kFactor;
  }

  void add(char byte) { value_ = value_ * kFactor + term(byte); }
  void roll(char added, char removed) {
    add(added);
    value_ -= leaving_factor_ * term(removed);
  }
  std::uint64_t value() const { return value_; }

 private:
  static constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;

  static std::uint64_t term(char byte) { return static_cast<unsigned char>(byte) + 1U; }

  std::uint64_t leaving_factor_ = 1;
  std::uint64_t value_ = 0;
};

std::uint64_t hash_of(std::string_view window) {
  RollingHash hash(window.size());
  for (const char byte : window) hash.add(byte);
  return hash.value();
}

/// A set of hashes that rejects most other numbers by one bit of a table in the first-level cache.
class HashSet {
 public:
  void insert(std::uint64_t hash) {
    hashes_.insert(hash);
    has_bits_[hash >> kShift] = true;
  }
  bool contains(std::uint64_t hash) const {
    return has_bits_[hash >> kShift] && hashes_.contains(hash);
  }

 private:
  static constexpr int kShift = 64 - 18;  // 32 KiB of bits

  std::unordered_set<std::uint64_t> hashes_;
  std::vector<bool> has_bits_ = std::vector<bool>(std::size_t{1} << (64 - kShift));
};

}  // namespace

std::vector<bool> occur_in(std::string_view training, std::string_view text,
                           std::span<const std::size_t> starts, std::size_t length) {
  HashSet wanted;
  for (const std::size_t start : starts) wanted.insert(hash_of(text.substr(start, length)));

  std::unordered_set<std::uint64_t> found;
  RollingHash hash(length);
  for (std::size_t i = 0; i < training.size(); ++i) {
    if (i < length) {
      hash.add(training[i]);
    } else {
      hash.roll(training[i], training[i - length]);
    }
    if (i + 1 >= length && wanted.contains(hash.value())) found.insert(hash.value());
  }

  std::vector<bool> result;
  for (const std::size_t start : starts) {
    result.push_back(found.contains(hash_of(text.substr(start, length))));
  }
  return result;
}

EvaluationWindows evaluation_windows(std::string_view training, std::string_view held_out,
                                     std::size_t length, std::size_t most) {
  const std::vector<std::size_t> candidates = spread_windows(held_out.size(), length, most);
  const std::vector<bool> occurs = occur_in(training, held_out, candidates, length);
  const auto known = static_cast<std::size_t>(std::ranges::count(occurs, true));
  if (known == candidates.size()) return {.starts = candidates, .in_training = known};

  EvaluationWindows windows{.left_out = known};
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!occurs[i]) windows.starts.push_back(candidates[i]);
  }
  return windows;
}

}  // namespace gpt
