#include "compression/registry.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "kolo/compression.hpp"
#include "kolo/error.hpp"

namespace kolo::compression {
namespace {

/// A codec that sends a fraction of the elements; its full name is "name:fraction".
struct SparseCodec {
  std::string_view name;
  std::unique_ptr<const Codec> (*make)(std::string name, double fraction);
};

constexpr SparseCodec kSparseCodecs[] = {{"top_k", top_k}, {"random_k", random_k}};

template <class Items>
auto find_by_name(const Items& items, std::string_view name) {
  const auto found =
      std::ranges::find_if(items, [&](const auto& item) { return item->name() == name; });
  return found == std::end(items) ? nullptr : &**found;
}

}  // namespace

Registry::Registry() : compressors_{&none(), &fp16(), &bf16()} {
  for (const auto codec : kCodecs) codecs_.push_back(&codec());
}

void Registry::add(const Codec& added) {
  const std::string_view name = added.name();
  if (name.empty()) throw InvalidArgument("compression: the name must not be empty");
  const std::string what = "compression \"" + std::string(name) + "\": ";
  if (name.find(':') != name.npos) throw InvalidArgument(what + "a name must not have a colon");
  const bool is_sparse = std::ranges::any_of(
      kSparseCodecs, [&](const SparseCodec& codec) { return codec.name == name; });
  if (is_sparse || find_by_name(compressors_, name) || find_by_name(codecs_, name)) {
    throw InvalidArgument(what + "the name is taken; choose another one");
  }
  codecs_.push_back(&added);
}

const Compressor& Registry::find(std::string_view name) const {
  const Compressor* const compressor = find_by_name(compressors_, name);
  if (compressor != nullptr) return *compressor;
  find_codec(name);
  return none();
}

const Codec* Registry::find_codec(std::string_view name) const {
  if (find_by_name(compressors_, name) != nullptr) return nullptr;
  const Codec* codec = find_by_name(codecs_, name);
  if (codec == nullptr) codec = make_with_fraction(name);
  if (codec == nullptr) {
    std::string choices;
    for (const std::string& one : names()) choices += (choices.empty() ? "" : ", ") + one;
    throw InvalidArgument("compression \"" + std::string(name) +
                          "\": there is none of that name; choose one of " + choices);
  }
  return codec;
}

const Codec* Registry::make_with_fraction(std::string_view name) const {
  const Lock lock(mutex_);
  if (const Codec* const codec = find_by_name(with_fraction_, name)) return codec;
  for (const SparseCodec& codec : kSparseCodecs) {
    if (!name.starts_with(codec.name) || name.substr(codec.name.size(), 1) != ":") continue;
    const std::string_view digits = name.substr(codec.name.size() + 1);
    double fraction = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), fraction);
    const bool is_number = error == std::errc{} && end == digits.data() + digits.size();
    if (!is_number || !(fraction > 0.0 && fraction <= 1.0)) {
      throw InvalidArgument("compression \"" + std::string(name) + "\": the fraction is \"" +
                            std::string(digits) + "\"; it must be a number above 0, at most 1");
    }
    return with_fraction_.emplace_back(codec.make(std::string(name), fraction)).get();
  }
  return nullptr;
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const Compressor* compressor : compressors_) names.emplace_back(compressor->name());
  for (const Codec* codec : codecs_) names.emplace_back(codec->name());
  for (const SparseCodec& codec : kSparseCodecs) {
    names.push_back(std::string(codec.name) + ":FRACTION");
  }
  return names;
}

}  // namespace kolo::compression

namespace kolo {

/// Writes the fewest digits that give the same number, so that equal fractions have equal names.
Compression Compression::with_fraction(const char* name, double fraction) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), fraction).ptr;
  return Compression(std::string(name) + ":" + std::string(digits.data(), end));
}

std::string_view name_of(CompressionScope scope) {
  return scope == CompressionScope::Everywhere ? "everywhere" : "between nodes";
}

}  // namespace kolo
