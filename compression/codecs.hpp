#pragma once

#include <memory>
#include <string>

#include "base/codec_format.hpp"
#include "kolo/codec.hpp"

namespace kolo::compression {

/// A codec whose format is also supported by GPU kernels.
class BuiltInCodec : public Codec {
 public:
  explicit BuiltInCodec(base::CodecFormat format) : format_(format) {}

  const base::CodecFormat& format() const { return format_; }
  std::size_t block() const override { return format_.block(); }
  std::size_t payload_bytes(std::size_t count, int terms) const override {
    return format_.payload_bytes(count, terms);
  }

 private:
  base::CodecFormat format_;
};

/// The built-in codecs. Each is explained in its file.
const Codec& int8();
const Codec& one_bit();
/// @param name with the fraction: "top_k:0.01"
/// @param fraction of the elements that are sent, in (0, 1]
std::unique_ptr<const Codec> top_k(std::string name, double fraction);
std::unique_ptr<const Codec> random_k(std::string name, double fraction);

}  // namespace kolo::compression
