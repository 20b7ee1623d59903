#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "kolo/extras/stream_shard.hpp"

/// Data sets whose samples are their own numbers.
namespace kolo::test {

using Numbers = std::vector<std::int64_t>;
using Example = torch::data::Example<>;

inline Example numbered(std::size_t number) {
  const at::Tensor tensor = torch::tensor(static_cast<std::int64_t>(number));
  return {tensor, tensor};
}

inline Numbers to_numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.flatten().contiguous();
  const auto* data = flat.const_data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}

/// The numbers of a batch: [samples].
inline at::Tensor numbers_of(const std::vector<Example>& batch) {
  std::vector<at::Tensor> numbers;
  for (const Example& example : batch) numbers.push_back(example.data);
  return torch::stack(numbers);
}

class NumberedData : public torch::data::datasets::Dataset<NumberedData> {
 public:
  explicit NumberedData(std::size_t size) : size_(size) {}
  Example get(std::size_t index) override { return numbered(index); }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};

/// A stream from which this rank's elements are read.
class NumberedStream : public torch::data::datasets::StatefulDataset<NumberedStream> {
 public:
  NumberedStream(std::size_t elements, StreamShard shard)
      : elements_(elements), shard_(std::move(shard)) {}

  std::optional<std::vector<Example>> get_batch(std::size_t batch_size) override {
    std::vector<Example> batch;
    for (; next_ < elements_ && batch.size() < batch_size; ++next_) {
      if (shard_.takes(next_)) batch.push_back(numbered(next_));
    }
    if (batch.empty()) return std::nullopt;
    return batch;
  }
  std::optional<std::size_t> size() const override { return std::nullopt; }
  void reset() override { next_ = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  std::size_t elements_;
  StreamShard shard_;
  std::size_t next_ = 0;
};

}  // namespace kolo::test
