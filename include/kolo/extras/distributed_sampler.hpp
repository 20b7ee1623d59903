#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <torch/data/samplers/base.h>

#include "kolo/process_set.hpp"

namespace kolo {

#pragma GCC visibility push(default)
/// Makes the generator of one sample in one epoch, for a data set that draws random numbers, such
/// as a place to crop at. Its numbers depend only on the arguments. docs/data.md says why those of
/// LibTorch's default generator do not serve.
///
///   at::Tensor noise = torch::randn({3}, kolo::sample_generator(seed, epoch, index));
///
/// DistributedSampler::sample_generator and Accelerator::sample_generator know seed and epoch.
/// For other kinds of random numbers, use its current_seed(): `std::mt19937_64(
/// generator.current_seed())`.
at::Generator sample_generator(std::uint64_t seed, std::int64_t epoch, std::size_t index);
#pragma GCC visibility pop

}  // namespace kolo

namespace kolo::extras {
struct EpochOrder;
class SampleSequence;
}  // namespace kolo::extras

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a DistributedSampler; the same on all ranks.
struct DistributedSamplerOptions {
  bool shuffle = true;     ///< a new order in every epoch; false: by index
  std::uint64_t seed = 0;  ///< of the shuffled orders
  /// Leaves out samples at the end of an epoch so that all ranks have equally many. Otherwise
  /// samples from the beginning of the epoch's order are repeated: the padding.
  bool drop_last = false;
  ProcessSet* process_set = nullptr;  ///< null: the world of Runtime::current()
};

/// Divides a data set between ranks for LibTorch's data loaders: a new order in every epoch, and
/// exact resume in the middle of an epoch, on any number of ranks. All ranks use the same batch
/// size. docs/data.md has the loop, and says who gets what.
///
/// A loader prefetches batches, so the program reports each batch that it takes by calling
/// consume(), and the state counts those. This requires batches in order: leave
/// DataLoaderOptions::enforce_ordering on.
///
/// Copies share one position, so the program's sampler knows which batches its loader's copy has
/// returned. Use one loader at a time. Nothing here is collective: ranks that make the same calls
/// have the same state. Not thread-safe but for sample_generator(); LibTorch's loaders call the
/// rest only on the thread that iterates.
class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  using Options = DistributedSamplerOptions;

  /// Every sample once per epoch, except for padding and drop_last.
  /// @param size of the data set
  /// @throws InvalidArgument if an epoch would have no samples, or this rank is not in the process
  ///   set
  explicit DistributedSampler(std::size_t size, const Options& options = {});

  /// Draws samples at random with replacement, in proportion to their weights.
  /// @param weights one per sample: finite, not negative, at least one positive; the same on all
  ///   ranks
  /// @param samples to draw in an epoch, by all ranks together
  /// @throws InvalidArgument for other weights, without `shuffle`, or as the constructor
  static DistributedSampler weighted(const std::vector<double>& weights, std::size_t samples,
                                     const Options& options = {});

  /// Every sample once per epoch, in batches of similar length; docs/data.md says how they are
  /// formed. Without `shuffle`, samples are ordered by length, longest first.
  /// @param lengths one per sample; the same on all ranks
  /// @param step_samples samples that all ranks together take per step: the sum of their batch
  ///   sizes
  /// @throws InvalidArgument if step_samples is 0, or as the constructor
  static DistributedSampler grouped(const std::vector<std::size_t>& lengths,
                                    std::size_t step_samples, const Options& options = {});

  /// Begins an iteration, as loaders do in begin(): over the rest of the epoch after the
  /// constructor or set_state(), otherwise over the next epoch, even if the last one was left
  /// early. A loader with workers that was left early refuses another begin(): make another.
  /// @throws InvalidArgument if `new_size` is not the sampler's size; construct a new sampler
  ///   instead
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  /// @return the samples of this rank's next batch, `batch_size` or, at the end of an epoch, fewer;
  ///   nothing after its end
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// A batch that consume() has counted.
  struct Batch {
    std::size_t samples = 0;  ///< of this rank; every rank has as many
    /// How many samples of all ranks are padding: the last one of each of the last `padding` ranks.
    /// 0 except in the last batch of an epoch.
    std::size_t padding = 0;
  };

  /// Counts the oldest batch that next() has returned and that is not counted yet. Call it once for
  /// each batch, when the program takes it from the loader.
  /// @throws InvalidArgument if there is none
  Batch consume();
  /// @return the last result of consume() in this iteration; nothing before that
  std::optional<Batch> last_batch() const;

  /// Ends the current epoch, unless its last batch was consumed or it has not begun: the next
  /// iteration is over the next epoch. For programs that leave a loop for good, or whose loader
  /// drops a smaller last batch (DataLoaderOptions::drop_last).
  void end_epoch();

  /// @return the epoch, from 0, of the first sample that was not consumed; after an epoch's last
  ///   batch this is the next epoch
  std::int64_t epoch() const;
  /// @return samples of the epoch that all ranks together have consumed
  std::size_t consumed() const;

  /// @return the generator of a sample in the epoch of the current iteration, see
  ///   kolo::sample_generator. A data set that has a copy of the sampler calls it in get(); any
  ///   thread may
  at::Generator sample_generator(std::size_t index) const;

  /// @return the position as JSON text, the same on all ranks: for SaveOptions::extras
  std::string state() const;
  /// Resumes where state() was called, on any number of ranks. Call it between two iterations.
  /// @throws InvalidArgument if the text is damaged, or comes from a sampler with another order,
  ///   size, or seed; this sampler is then unchanged
  void set_state(const std::string& state);

  /// state() and set_state() for torch::save and torch::load.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  ProcessSet& process_set() const { return *set_; }

 private:
  DistributedSampler(const extras::EpochOrder& order, const Options& options);

  std::shared_ptr<ProcessSet> set_;
  std::shared_ptr<extras::SampleSequence> sequence_;
};

}  // namespace kolo
#pragma GCC visibility pop
