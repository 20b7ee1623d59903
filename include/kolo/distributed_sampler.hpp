#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/data/samplers/base.h>

#include "kolo/process_set.hpp"

namespace kolo::tensors {
struct EpochOrder;
class SampleSequence;
}  // namespace kolo::tensors

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a DistributedSampler; the same on all ranks.
struct DistributedSamplerOptions {
  bool shuffle = true;     ///< another order in every epoch; false: by index
  std::uint64_t seed = 0;  ///< of the orders
  /// Whether samples are left out at an epoch's end so that all ranks get equally many. Otherwise
  /// samples from the beginning of its order are repeated: the padding.
  bool drop_last = false;
  ProcessSet* process_set = nullptr;  ///< null: the world of Runtime::current()
};

/// Cuts a data set by rank, for LibTorch's data loaders: a new order every epoch, and exact resumes
/// in the middle of one, at any number of ranks.
///
///   kolo::DistributedSampler sampler(*dataset.size(), {.seed = 7});
///   auto loader = torch::data::make_data_loader(dataset, sampler, kBatch);
///   if (resumes) sampler.set_state(optimizer.load(folder).extras.at("sampler"));
///   while (sampler.epoch() < kEpochs) {
///     for (auto& batch : *loader) {
///       sampler.consume();
///       train(batch);
///       if (is_time()) optimizer.save(folder, {.extras = {{"sampler", sampler.state()}}});
///     }
///   }
///
/// The order of an epoch is a function of seed, epoch and size alone: the same on every machine and
/// for every number of ranks. Of what is left of it when an iteration begins, rank r of N gets the
/// positions r, r + N, r + 2N …, so a batch of all ranks together is a stretch of the order. The
/// state counts how much of the order all ranks have consumed. A resumed run sees the rest, and
/// the same batches if the ranks' batches add up to as many samples as before. All ranks use the
/// same batch size.
///
/// A loader asks for batches before the program takes them. So the program says which it takes, by
/// consume(), and the state counts those. That needs batches in order: leave
/// DataLoaderOptions::enforce_ordering on.
///
/// Copies share one position, so the program's sampler knows what its loader's copy has handed out;
/// one loader at a time uses it. Nothing here is collective: ranks that make the same calls agree.
/// Not thread-safe; LibTorch's loaders call it on the thread that iterates only.
class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  using Options = DistributedSamplerOptions;

  /// Every sample once an epoch, but for padding and drop_last.
  /// @param size of the data set
  /// @throws InvalidArgument if this rank is not in the process set
  explicit DistributedSampler(std::size_t size, const Options& options = {});

  /// Draws samples at random, with replacement, as often as their weights say.
  /// @param weights of the data set's samples: finite, not negative, and one at least positive; the
  ///   same on all ranks
  /// @param samples to draw in an epoch, by all ranks together
  /// @throws InvalidArgument for other weights, or without `shuffle`
  static DistributedSampler weighted(const std::vector<double>& weights, std::size_t samples,
                                     const Options& options = {});

  /// Every sample once an epoch, in batches of similar length, so that little is lost to padding
  /// within a batch. In a step all ranks get about equal lengths: their totals differ by no more
  /// than the longest and the shortest sample of the step. Groups are formed of samples that the
  /// shuffled order has near each other, so they are others in every epoch. Without `shuffle`, by
  /// length, the longest first.
  /// @param lengths of the data set's samples; the same on all ranks
  /// @param step_samples that all ranks together take in a step: the ranks' batch sizes added up
  /// @throws InvalidArgument if step_samples is 0
  static DistributedSampler grouped(const std::vector<std::size_t>& lengths,
                                    std::size_t step_samples, const Options& options = {});

  /// Begins an iteration, as loaders do in begin(): of what is left after the constructor or
  /// set_state(), and otherwise of the next epoch, even if the last was left early.
  /// @throws InvalidArgument if a size is given that is not the sampler's: make another sampler
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  /// @return the samples of this rank's next batch, `batch_size` or, at the end of an epoch, fewer;
  ///   nothing after its end
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// A batch that consume() has counted.
  struct Batch {
    std::size_t samples = 0;  ///< of this rank; every rank has as many
    /// Samples of all ranks that are padding: the last ones of the last `padding` ranks. It is 0
    /// but for the last batch of an epoch.
    std::size_t padding = 0;
  };

  /// Counts the oldest batch that was handed out and not counted yet: call it once for each batch,
  /// when the program takes it from the loader.
  /// @throws InvalidArgument if there is none
  Batch consume();
  /// @return what consume() has returned last in this iteration; nothing before that
  std::optional<Batch> last_batch() const;

  /// Ends the current epoch, unless its last batch was consumed or it has not begun: the next
  /// iteration is of the next one. For programs that leave a loop for good, or whose loader drops a
  /// smaller last batch (DataLoaderOptions::drop_last).
  void end_epoch();

  /// @return the epoch of the first sample that was not consumed, from 0; after an epoch's last
  ///   batch that of the next one
  std::int64_t epoch() const;
  /// @return samples of the epoch that all ranks together have consumed
  std::size_t consumed() const;

  /// @return the position as JSON text, the same on all ranks: for SaveOptions::extras
  std::string state() const;
  /// Goes on where state() was called, at any number of ranks. Call it between two iterations.
  /// @throws InvalidArgument if the text is damaged, or of a sampler with another order, size, or
  ///   seed; this one is then as before
  void set_state(const std::string& state);

  /// state() and set_state() for torch::save and torch::load.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  ProcessSet& process_set() const { return *set_; }

 private:
  DistributedSampler(const tensors::EpochOrder& order, const Options& options);

  ProcessSet* set_;
  std::shared_ptr<tensors::SampleSequence> sequence_;
};

}  // namespace kolo
#pragma GCC visibility pop
