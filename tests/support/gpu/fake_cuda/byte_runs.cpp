#include "support/gpu/fake_cuda/byte_runs.hpp"

#include <algorithm>
#include <cstddef>

namespace kolo::test {
namespace {

struct Dimension {
  std::size_t size;
  std::size_t stride;  // in bytes
};

/// The dimensions with more than one address, sorted by stride, smallest first.
std::vector<Dimension> dimensions_of(const at::Tensor& tensor) {
  std::vector<Dimension> dimensions;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 1 || tensor.stride(i) == 0) continue;
    dimensions.push_back({static_cast<std::size_t>(tensor.size(i)),
                          static_cast<std::size_t>(tensor.stride(i) * tensor.element_size())});
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  return dimensions;
}

}  // namespace

std::vector<ByteRange> byte_runs(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return {};
  const std::vector<Dimension> dimensions = dimensions_of(tensor);
  auto length = static_cast<std::size_t>(tensor.element_size());
  auto dimension = dimensions.begin();
  while (dimension != dimensions.end() && dimension->stride <= length) {
    length += (dimension->size - 1) * dimension->stride;
    ++dimension;
  }
  std::vector<ByteRange> runs{{static_cast<const std::byte*>(tensor.const_data_ptr()), length}};
  for (; dimension != dimensions.end(); ++dimension) {
    const std::size_t inner = runs.size();
    for (std::size_t i = 1; i < dimension->size; ++i) {
      for (std::size_t run = 0; run < inner; ++run) {
        runs.emplace_back(runs[run].data() + i * dimension->stride, length);
      }
    }
  }
  return runs;
}

}  // namespace kolo::test
