#include "gpt/batch.hpp"

#include <algorithm>
#include <cstdint>

#include <ATen/ops/empty.h>

namespace gpt {

at::Tensor read_windows(std::string_view text, std::span<const std::size_t> starts,
                        std::size_t length) {
  at::Tensor windows = at::empty(
      {static_cast<std::int64_t>(starts.size()), static_cast<std::int64_t>(length)}, at::kLong);
  auto* next = windows.mutable_data_ptr<std::int64_t>();
  for (const std::size_t start : starts) {
    next = std::ranges::transform(text.substr(start, length), next, [](char byte) {
             return static_cast<std::int64_t>(static_cast<unsigned char>(byte));
           }).out;
  }
  return windows;
}

}  // namespace gpt
