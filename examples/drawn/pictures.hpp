#pragma once

#include <cstddef>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include "drawn/sign.hpp"

namespace drawn {

/// `count` pictures of an alphabet from number `first` on, for torch::data loaders: examples of a
/// float32 image [1, kSide, kSide] and an int64 label [].
class Pictures : public torch::data::datasets::Dataset<Pictures> {
 public:
  Pictures(Alphabet alphabet, std::size_t first, std::size_t count)
      : alphabet_(alphabet), first_(first), count_(count) {}

  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override { return count_; }

  /// Images [end - begin, 1, kSide, kSide] and labels [end - begin] of examples begin … end - 1.
  torch::data::Example<> range(std::size_t begin, std::size_t end);

 private:
  Alphabet alphabet_;
  std::size_t first_;
  std::size_t count_;
};

}  // namespace drawn
