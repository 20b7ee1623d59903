#include "kolo/extras/distributed_sampler.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/serialize/archive.h>

#include "extras/data/epoch_order.hpp"
#include "extras/data/sample_sequence.hpp"
#include "kolo/error.hpp"

namespace kolo {

at::Generator sample_generator(std::uint64_t seed, std::int64_t epoch, std::size_t index) {
  std::uint64_t mixed = extras::next_random(seed) ^ static_cast<std::uint64_t>(epoch);
  mixed = extras::next_random(mixed) ^ index;
  return at::make_generator<at::CPUGeneratorImpl>(extras::next_random(mixed));
}

namespace {

DistributedSampler::Batch to_batch(const extras::SampleSequence::Batch& batch) {
  return {.samples = batch.samples, .padding = batch.padding};
}

/// A loop over epochs without samples would never end, or train on nothing without a word.
void require_samples(std::size_t samples, bool drop_last, const ProcessSet& set) {
  if (samples == 0) {
    throw InvalidArgument(
        "DistributedSampler: an epoch has 0 samples. Check the size and the path of the data set.");
  }
  if (!drop_last || samples >= static_cast<std::size_t>(set.size())) return;
  throw InvalidArgument("DistributedSampler: of " + std::to_string(samples) +
                        " samples, drop_last leaves none for " + std::to_string(set.size()) +
                        " ranks. Leave drop_last out, or use fewer ranks.");
}

}  // namespace

DistributedSampler::DistributedSampler(const extras::EpochOrder& order, const Options& options)
    : set_(member_set(options.process_set).shared_from_this()),
      sequence_(std::make_shared<extras::SampleSequence>(order, options.seed, options.drop_last,
                                                         set_->rank(), set_->size())) {
  require_samples(order.samples, options.drop_last, *set_);
}

DistributedSampler::DistributedSampler(std::size_t size, const Options& options)
    : DistributedSampler(options.shuffle ? extras::shuffled(size) : extras::by_index(size),
                         options) {}

DistributedSampler DistributedSampler::weighted(const std::vector<double>& weights,
                                                std::size_t samples, const Options& options) {
  if (!options.shuffle) {
    throw InvalidArgument(
        "DistributedSampler::weighted draws at random, and shuffle is false. Leave it true.");
  }
  return {extras::weighted(weights, samples), options};
}

DistributedSampler DistributedSampler::grouped(const std::vector<std::size_t>& lengths,
                                               std::size_t step_samples, const Options& options) {
  return {extras::grouped(lengths, step_samples, options.shuffle), options};
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size && *new_size != sequence_->samples()) {
    throw InvalidArgument("DistributedSampler::reset: the new size is " +
                          std::to_string(*new_size) + ", and the sampler was made for " +
                          std::to_string(sequence_->samples()) +
                          " samples. Make another sampler for another data set.");
  }
  sequence_->begin();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  return sequence_->next(batch_size);
}

DistributedSampler::Batch DistributedSampler::consume() { return to_batch(sequence_->consume()); }

std::optional<DistributedSampler::Batch> DistributedSampler::last_batch() const {
  if (!sequence_->last_batch()) return std::nullopt;
  return to_batch(*sequence_->last_batch());
}

void DistributedSampler::end_epoch() { sequence_->end_epoch(); }

std::int64_t DistributedSampler::epoch() const { return sequence_->epoch(); }

std::size_t DistributedSampler::consumed() const { return sequence_->consumed(); }

at::Generator DistributedSampler::sample_generator(std::size_t index) const {
  return kolo::sample_generator(sequence_->seed(), sequence_->iterated_epoch(), index);
}

std::string DistributedSampler::state() const { return sequence_->state(); }

void DistributedSampler::set_state(const std::string& state) { sequence_->set_state(state); }

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("state", c10::IValue(state()));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue saved;
  archive.read("state", saved);
  set_state(saved.toStringRef());
}

}  // namespace kolo
