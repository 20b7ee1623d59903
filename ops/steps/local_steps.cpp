#include "ops/steps/local_steps.hpp"

#include <array>
#include <cstring>

#include "ops/kernels/kernels.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

Task scale_elements(CollectiveCall call, double factor, const std::byte* from, std::byte* to,
                    std::size_t count) {
  const Reduction reduction = with_scales(call.reduction, factor, 1.0);
  const std::size_t segment = segment_length(call);
  for (std::size_t i = 0; i < segment_count(count, segment); ++i) {
    const Range range = segment_of({0, count}, segment, i);
    const std::array<const std::byte*, 1> inputs{bytes_of(call, from, range).data()};
    const std::array<std::byte*, 1> outputs{bytes_of(call, to, range).data()};
    combine(call.dtype, reduction, inputs, outputs, range.length);
    co_await yield();
  }
}

Task copy_elements(CollectiveCall call, const std::byte* from, std::byte* to, std::size_t count) {
  if (from == to) co_return;
  const std::size_t segment = segment_length(call);
  for (std::size_t i = 0; i < segment_count(count, segment); ++i) {
    const Range range = segment_of({0, count}, segment, i);
    const std::span<const std::byte> source = bytes_of(call, from, range);
    std::memcpy(bytes_of(call, to, range).data(), source.data(), source.size());
    co_await yield();
  }
}

}  // namespace kolo::ops
