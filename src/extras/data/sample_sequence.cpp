#include "extras/data/sample_sequence.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>

#include "extras/data/saved_state.hpp"
#include "kolo/error.hpp"

namespace kolo::extras {

namespace {

/// Parses the text of a state and passes its object to `read`, which reads the fields with at().
/// Throws InvalidArgument, with a text that begins with `what`, if it is damaged, or `read` throws.
void read_state(const std::string& what, const std::string& text,
                const std::function<void(const nlohmann::json& fields)>& read) {
  try {
    read(nlohmann::json::parse(text));
  } catch (const std::exception& error) {
    throw InvalidArgument(what + ": the state is damaged: " + escaped(error.what()) +
                          ". Give the text that state() has returned, or begin anew.");
  }
}

constexpr const char* kSetState = "DistributedSampler::set_state";

void expect_own(const std::string& field, const std::string& saved, const std::string& own) {
  if (saved == own) return;
  throw InvalidArgument(std::string(kSetState) + ": " + field + " is " + escaped(saved) +
                        " in the state, and " + own +
                        " in this sampler. Make the sampler as in the run that saved the state, or "
                        "begin anew without it.");
}

}  // namespace

SampleSequence::SampleSequence(EpochOrder order, std::uint64_t seed, bool drop_last, int rank,
                               int ranks)
    : order_(std::move(order)),
      seed_(seed),
      drop_last_(drop_last),
      rank_(static_cast<std::size_t>(rank)),
      ranks_(static_cast<std::size_t>(ranks)) {}

std::size_t SampleSequence::end_of_places(std::size_t begin) const {
  const std::size_t surplus = (order_.samples - begin) % ranks_;
  if (surplus == 0) return order_.samples;
  return order_.samples - surplus + (drop_last_ ? 0 : ranks_);
}

void SampleSequence::begin() {
  if (iteration_ && iteration_->epoch == epoch_) advance();
  iteration_ = Iteration{epoch_, order_.of(seed_, epoch_), consumed_, end_of_places(consumed_)};
  iterated_epoch_ = epoch_;
  unconsumed_.clear();
  last_batch_.reset();
}

std::optional<std::vector<std::size_t>> SampleSequence::next(std::size_t batch_size) {
  if (!iteration_) begin();
  Iteration& now = *iteration_;
  const std::size_t count = std::min(batch_size, (now.end - now.next) / ranks_);
  if (count == 0) return std::nullopt;
  std::vector<std::size_t> samples;
  for (std::size_t i = 0; i < count; ++i) {
    samples.push_back(now.order[(now.next + i * ranks_ + rank_) % order_.samples]);
  }
  now.next += count * ranks_;
  unconsumed_.push_back({count, now.next - std::min(now.next, order_.samples)});
  return samples;
}

SampleSequence::Batch SampleSequence::consume() {
  if (unconsumed_.empty()) {
    throw InvalidArgument(
        "DistributedSampler::consume: every batch that the sampler has handed out is counted "
        "already. Call it once for each batch that the program takes from the loader.");
  }
  const Batch batch = unconsumed_.front();
  unconsumed_.pop_front();
  consumed_ += batch.samples * ranks_;
  if (consumed_ >= iteration_->end) advance();
  last_batch_ = batch;
  return batch;
}

void SampleSequence::end_epoch() {
  const bool is_iterated = iteration_ && iteration_->epoch == epoch_;
  if (is_iterated || consumed_ > 0) advance();
}

void SampleSequence::advance() {
  ++epoch_;
  consumed_ = 0;
  if (iteration_) iteration_->next = iteration_->end;
  unconsumed_.clear();
}

std::string SampleSequence::state() const {
  return nlohmann::ordered_json{{"order", order_.name},
                                {"samples", order_.samples},
                                {"seed", seed_},
                                {"epoch", epoch_},
                                {"consumed", consumed_}}
      .dump();
}

void SampleSequence::set_state(const std::string& text) {
  std::string order;
  std::uint64_t samples = 0;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::size_t consumed = 0;
  read_state(kSetState, text, [&](const nlohmann::json& fields) {
    order = fields.at("order").get<std::string>();
    samples = to_count(fields.at("samples"));
    seed = to_count(fields.at("seed"));
    epoch = to_epoch(fields.at("epoch"));
    consumed = to_count(fields.at("consumed"));
    if (consumed > samples) throw InvalidArgument("more samples are consumed than there are");
  });
  expect_own("the order", order, order_.name);
  expect_own("the number of samples", std::to_string(samples), std::to_string(order_.samples));
  expect_own("the seed", std::to_string(seed), std::to_string(seed_));
  epoch_ = epoch;
  consumed_ = consumed;
  iteration_.reset();
  unconsumed_.clear();
  last_batch_.reset();
  // On another number of ranks, drop_last may leave out all remaining samples.
  if (consumed_ > 0 && end_of_places(consumed_) == consumed_) advance();
}

StreamPosition::StreamPosition(std::size_t block, int rank, int ranks)
    : block_(block),
      rank_(static_cast<std::uint64_t>(rank)),
      ranks_(static_cast<std::uint64_t>(ranks)) {
  if (block == 0) {
    throw InvalidArgument(
        "StreamShard: block is 0. Give the number of elements in a row that one rank takes.");
  }
}

bool StreamPosition::takes(std::uint64_t element) const {
  return element >= start_ && (element - start_) / block_ % ranks_ == rank_;
}

void StreamPosition::end_epoch() {
  ++epoch_;
  start_ = 0;
  consumed_ = 0;
}

std::string StreamPosition::state() const {
  if (consumed_ % block_ != 0) {
    throw InvalidArgument("StreamShard::state: this rank has consumed " +
                          std::to_string(consumed_) +
                          " elements since the run began, and a block "
                          "has " +
                          std::to_string(block_) + ". Take the state after whole blocks.");
  }
  return nlohmann::ordered_json{{"epoch", epoch_}, {"elements", start_ + consumed_ * ranks_}}
      .dump();
}

void StreamPosition::set_state(const std::string& text) {
  std::int64_t epoch = 0;
  std::uint64_t elements = 0;
  read_state("StreamShard::set_state", text, [&](const nlohmann::json& fields) {
    epoch = to_epoch(fields.at("epoch"));
    elements = to_count(fields.at("elements"));
  });
  epoch_ = epoch;
  start_ = elements;
  consumed_ = 0;
}

}  // namespace kolo::extras
