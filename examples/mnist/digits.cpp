#include "mnist/digits.hpp"

#include <stdexcept>
#include <string>

#include <ATen/Functions.h>

#include "mnist/idx.hpp"

namespace mnist {
namespace {

constexpr double kMean = 0.1307;  // of the pixels of the training set, which range from 0 to 1
constexpr double kDeviation = 0.3081;

at::Tensor tensor_of(const IdxArray& array) {
  return at::from_blob(const_cast<std::uint8_t*>(array.values.data()), array.shape, at::kByte)
      .clone();
}

Digits load_pair(const std::filesystem::path& folder, const std::string& prefix) {
  const std::filesystem::path images = folder / (prefix + "-images-idx3-ubyte");
  const std::filesystem::path labels = folder / (prefix + "-labels-idx1-ubyte");
  Digits digits{tensor_of(read_idx(images)), tensor_of(read_idx(labels)).to(at::kLong)};
  if (digits.images.dim() != 3) throw std::runtime_error(images.string() + ": not of images");
  if (digits.labels.dim() != 1 || digits.labels.size(0) != digits.images.size(0)) {
    throw std::runtime_error(labels.string() + ": there must be a label for every image of " +
                             images.filename().string());
  }
  if (digits.labels.numel() > 0 && digits.labels.max().item<std::int64_t>() > 9) {
    throw std::runtime_error(labels.string() + ": there is a label above 9");
  }
  digits.images = digits.images.to(at::kFloat).div_(255).sub_(kMean).div_(kDeviation).unsqueeze(1);
  return digits;
}

Digits part(const Digits& digits, std::int64_t begin, std::int64_t end) {
  return {digits.images.slice(0, begin, end), digits.labels.slice(0, begin, end)};
}

}  // namespace

Dataset load_dataset(const std::filesystem::path& folder) {
  const Digits test = load_pair(folder, "t10k");
  if (std::filesystem::exists(folder / "train-images-idx3-ubyte")) {
    return {load_pair(folder, "train"), test};
  }
  const std::int64_t count = test.labels.size(0);
  return {part(test, 0, count * 4 / 5), part(test, count * 4 / 5, count)};
}

}  // namespace mnist
