#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

namespace mnist {

/// Handwritten digits.
struct Digits {
  at::Tensor images;  ///< float32 [count, 1, height, width], zero mean, unit variance
  at::Tensor labels;  ///< int64 [count]
};

struct Dataset {
  Digits training;
  Digits test;
};

/// Reads the files of the MNIST database in `folder`: train-images-idx3-ubyte,
/// train-labels-idx1-ubyte and the same with t10k. Where only the t10k pair is there, the last
/// fifth of it is the test set and the rest is to learn from. Throws std::runtime_error, which
/// names the file and what is wrong.
Dataset load_dataset(const std::filesystem::path& folder);

}  // namespace mnist
