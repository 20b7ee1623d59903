#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/data/dataloader.h>
#include <torch/data/example.h>
#include <torch/data/samplers/base.h>

#include "kolo/insight.hpp"

namespace kolo {

#pragma GCC visibility push(default)
class Accelerator;

/// Options of the batches of an Accelerator; the same on all ranks.
struct BatchOptions {
  /// Samples of a batch, over all ranks together: rank r of N takes the samples from r / N to (r +
  /// 1) / N of it. A step therefore means the same on any number of ranks, and a run can resume on
  /// another number. At least the number of ranks.
  std::size_t batch_size = 1;
  std::optional<bool> shuffle{};  ///< anew in each epoch; default: only training batches
  std::uint64_t seed = 0;         ///< of the shuffled orders
  bool drop_last = false;         ///< leave out a smaller last batch
  std::size_t workers = 0;        ///< threads that prefetch batches; each has a copy of the data
  /// If given, an epoch draws samples at random with replacement, in proportion to their weights,
  /// as many as the data set has. Weights are finite and not negative, and at least one is
  /// positive.
  std::vector<double> weights{};
  /// If given, batches consist of samples of similar length, so that little is lost to padding, and
  /// the ranks' shares of a batch have about the same total length. Not together with `weights`.
  std::vector<std::size_t> lengths{};
};

namespace extras {

/// The interface between a loop over batches and the Accelerator, independent of the data's type.
class BatchFeed {
 public:
  /// @param device of the batches
  explicit BatchFeed(c10::Device device) : device_(device) {}
  virtual ~BatchFeed() = default;
  BatchFeed(const BatchFeed&) = delete;  // loaders refer to it
  BatchFeed& operator=(const BatchFeed&) = delete;

  virtual void begin_loop() = 0;
  /// This rank's samples of the next batch; loaders prefetch several.
  virtual std::optional<std::vector<std::size_t>> next() = 0;
  virtual void take() = 0;  ///< the program receives the next batch
  virtual void end_loop() = 0;
  virtual std::size_t batches() const = 0;  ///< of an epoch
  c10::Device device() const { return device_; }

 private:
  c10::Device device_;
};

/// Moves the tensors of a batch; does nothing for values of other classes.
template <class Value>
void move_to(const c10::Device& /*device*/, Value& /*value*/) {}
inline void move_to(const c10::Device& device, at::Tensor& tensor) {
  if (tensor.defined()) tensor = tensor.to(device);
}
template <class Value>
void move_to(const c10::Device& device, std::vector<Value>& values);
template <class Data, class Target>
void move_to(const c10::Device& device, torch::data::Example<Data, Target>& example) {
  move_to(device, example.data);
  if constexpr (!std::is_void_v<Target>) move_to(device, example.target);
}
template <class Value>
void move_to(const c10::Device& device, std::vector<Value>& values) {
  for (auto&& value : values) move_to(device, value);
}

/// Lets a loader of LibTorch draw from a feed.
class FeedSampler final : public torch::data::samplers::Sampler<> {
 public:
  explicit FeedSampler(std::shared_ptr<BatchFeed> feed) : feed_(std::move(feed)) {}
  void reset(std::optional<std::size_t> /*new_size*/ = std::nullopt) override {}
  std::optional<std::vector<std::size_t>> next(std::size_t /*batch_size*/) override {
    return feed_->next();
  }
  void save(torch::serialize::OutputArchive& /*archive*/) const override {}
  void load(torch::serialize::InputArchive& /*archive*/) override {}

 private:
  std::shared_ptr<BatchFeed> feed_;
};

}  // namespace extras

/// LibTorch data sets with indexed samples: subclasses of torch::data::datasets::Dataset, mapped
/// ones too, but not streams.
template <class Dataset>
concept IndexedDataset =
    !Dataset::is_stateful &&
    std::is_convertible_v<std::vector<std::size_t>, typename Dataset::BatchRequestType>;

/// This rank's share of every batch; one loop over it is one epoch. Made by an Accelerator.
///
///   for (auto& batch : batches) { … batch.data, batch.target … }
///
/// Tensors of a batch, also those in an Example or a std::vector, are on the model's device.
/// The first loop over training batches after load_state() starts where the checkpoint was saved.
/// One loop at a time. If a smaller last batch has no sample for this rank, the rank gets a copy of
/// another rank's sample, which does not count.
template <IndexedDataset Dataset>
class Batches {
 public:
  using Batch = typename Dataset::BatchType;
  using Loader = torch::data::StatelessDataLoader<Dataset, extras::FeedSampler>;

  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = Batch;

    Batch& operator*() const { return *inner_; }
    Iterator& operator++() {
      const MarkedSpan span("load batch");
      ++inner_;
      arrive();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t /*end*/) const { return has_ended_; }

   private:
    friend class Batches;
    Iterator(Loader& loader, extras::BatchFeed& feed)
        : inner_(loader.begin()), end_(loader.end()), feed_(&feed) {
      arrive();
    }
    void arrive() {
      has_ended_ = inner_ == end_;
      if (has_ended_) return feed_->end_loop();
      feed_->take();
      extras::move_to(feed_->device(), *inner_);
    }

    mutable torch::data::Iterator<Batch> inner_;
    torch::data::Iterator<Batch> end_;
    extras::BatchFeed* feed_;
    bool has_ended_ = false;
  };

  /// Begins a loop. Not collective.
  Iterator begin() {
    const MarkedSpan span("load batch");
    loader_.reset();  // drops the batches that an unfinished loop has prefetched
    feed_->begin_loop();
    loader_ = std::make_unique<Loader>(dataset_, extras::FeedSampler(feed_),
                                       torch::data::DataLoaderOptions(1).workers(workers_));
    return Iterator(*loader_, *feed_);
  }
  std::default_sentinel_t end() const { return {}; }

  /// @return this, so that loops written for make_data_loader(), `: *batches`, stay as they are
  Batches& operator*() { return *this; }

  /// @return the number of batches in an epoch, the same on all ranks
  std::size_t size() const { return feed_->batches(); }

 private:
  friend class Accelerator;
  Batches(Dataset dataset, std::shared_ptr<extras::BatchFeed> feed, std::size_t workers)
      : dataset_(std::move(dataset)), feed_(std::move(feed)), workers_(workers) {}

  Dataset dataset_;
  std::shared_ptr<extras::BatchFeed> feed_;
  std::size_t workers_;
  std::unique_ptr<Loader> loader_;
};
#pragma GCC visibility pop

}  // namespace kolo
