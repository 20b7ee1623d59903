#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec_format.hpp"
#include "kolo/codec.hpp"
#include "kolo/compressor.hpp"

namespace kolo::compression {

/// The compressors and codecs of a runtime, with distinct names.
class Registry {
 public:
  /// With the built-in ones: the lists in registry.cpp.
  Registry();

  /// Adds a user's compressor or codec, which must outlive the registry. Throws InvalidArgument for
  /// a name that is taken, is empty or has a colon.
  void add(const Compressor& compressor);
  void add(const Codec& codec);

  /// The compressor of that name; none() for the name of a codec. Throws InvalidArgument, naming
  /// the choices, if there is neither.
  const Compressor& find(std::string_view name) const;
  /// The codec of that name, a built-in one with its fraction; null for the name of a compressor.
  /// Throws as find(). Any thread may call it. Exported for libkolo.so.
  [[gnu::visibility("default")]] const Codec* find_codec(std::string_view name) const;

  /// The format of a codec in GPU kernels; null for user-defined codecs, which have none. Exported
  /// for libkolo.so.
  [[gnu::visibility("default")]] static const base::CodecFormat* format_of(const Codec& codec);

  const std::vector<const Compressor*>& compressors() const { return compressors_; }

 private:
  void require_free(std::string_view name) const;
  const Codec* make_with_fraction(std::string_view name) const;
  std::string choices() const;

  std::vector<const Compressor*> compressors_;
  std::vector<const Codec*> codecs_;
  mutable std::mutex mutex_;  // guards the members below
  mutable std::vector<std::unique_ptr<const Codec>> with_fraction_;
};

}  // namespace kolo::compression
