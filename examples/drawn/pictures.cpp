#include "drawn/pictures.hpp"

#include <vector>

#include <ATen/Functions.h>

namespace drawn {

torch::data::Example<> Pictures::get(std::size_t index) {
  const at::Tensor image = at::empty({1, kSide, kSide});
  draw(alphabet_, first_ + index,
       std::span<float, kPixels>(image.mutable_data_ptr<float>(), kPixels));
  return {image, at::scalar_tensor(sign_of(alphabet_, first_ + index), at::kLong)};
}

torch::data::Example<> Pictures::range(std::size_t begin, std::size_t end) {
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> labels;
  for (std::size_t i = begin; i < end; ++i) {
    torch::data::Example<> example = get(i);
    images.push_back(std::move(example.data));
    labels.push_back(std::move(example.target));
  }
  return {at::stack(images), at::stack(labels)};
}

}  // namespace drawn
