#pragma once

#include <memory>
#include <string>

#include "kolo/codec.hpp"

namespace kolo::compression {

/// The built-in codecs, one a file, which explains it.
const Codec& int8();
const Codec& one_bit();
/// @param name with the fraction: "top_k:0.01"
/// @param fraction of the elements that are sent, in (0, 1]
std::unique_ptr<const Codec> top_k(std::string name, double fraction);
std::unique_ptr<const Codec> random_k(std::string name, double fraction);

}  // namespace kolo::compression
