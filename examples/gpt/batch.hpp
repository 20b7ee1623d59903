#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace gpt {

/// The windows of `length` bytes of `text` that begin at `starts`, as int64 [starts, length].
at::Tensor read_windows(std::string_view text, std::span<const std::size_t> starts,
                        std::size_t length);

}  // namespace gpt
