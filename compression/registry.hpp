#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "kolo/codec.hpp"
#include "kolo/compressor.hpp"

namespace kolo::compression {

/// The built-in codecs. Each is explained in its file.
const Codec& int8();
const Codec& one_bit();
inline constexpr const Codec& (*kCodecs[])() = {int8, one_bit};  // the list
/// @param name with the fraction: "top_k:0.01"
/// @param fraction of the elements that are sent, in (0, 1]
std::unique_ptr<const Codec> top_k(std::string name, double fraction);
std::unique_ptr<const Codec> random_k(std::string name, double fraction);

/// The built-in compressors. Each is explained in its file.
const Compressor& none();
const Compressor& fp16();
const Compressor& bf16();

/// The compressors and codecs of a runtime, with distinct names.
class Registry {
 public:
  /// With the built-in ones.
  Registry();

  /// Adds a user's codec, which must outlive the registry. Throws InvalidArgument for a name that
  /// is taken, is empty or has a colon.
  void add(const Codec& added);

  /// The compressor of that name; none() for the name of a codec. Throws InvalidArgument, naming
  /// the choices, if there is neither.
  const Compressor& find(std::string_view name) const;
  /// The codec of that name, a built-in one with its fraction; null for the name of a compressor.
  /// Throws as find(). Any thread may call it. Exported for libkolo.so.
  [[gnu::visibility("default")]] const Codec* find_codec(std::string_view name) const;

  const std::vector<const Compressor*>& compressors() const { return compressors_; }
  /// Of all compressors and codecs; "top_k:FRACTION" of one that has a fraction.
  std::vector<std::string> names() const;

 private:
  const Codec* make_with_fraction(std::string_view name) const;

  const std::vector<const Compressor*> compressors_;
  std::vector<const Codec*> codecs_;
  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<const Codec>> with_fraction_ KOLO_GUARDED_BY(mutex_);
};

}  // namespace kolo::compression
