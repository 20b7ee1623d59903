#pragma once

#include "kolo/compressor.hpp"

namespace kolo::compression {

/// The built-in compressors. Each is explained in its file.
const Compressor& none();
const Compressor& fp16();
const Compressor& bf16();

}  // namespace kolo::compression
