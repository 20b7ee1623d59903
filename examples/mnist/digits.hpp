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
/// train-labels-idx1-ubyte and the same with t10k. If there is only the t10k pair, its last fifth
/// is the test set and the rest the training set. Throws std::runtime_error, which names the file
/// and what is wrong.
Dataset load_dataset(const std::filesystem::path& folder);

}  // namespace mnist
