#include "kolo/extras/stream_shard.hpp"

#include "extras/data/sample_sequence.hpp"

namespace kolo {

StreamShard::StreamShard(const Options& options) {
  const ProcessSet& set = member_set(options.process_set);
  position_ = std::make_shared<extras::StreamPosition>(options.block, set.rank(), set.size());
}

bool StreamShard::takes(std::uint64_t element) const { return position_->takes(element); }

std::uint64_t StreamShard::start() const { return position_->start(); }

void StreamShard::consume(std::size_t elements) { position_->consume(elements); }

void StreamShard::end_epoch() { position_->end_epoch(); }

std::int64_t StreamShard::epoch() const { return position_->epoch(); }

std::string StreamShard::state() const { return position_->state(); }

void StreamShard::set_state(const std::string& state) { position_->set_state(state); }

}  // namespace kolo
