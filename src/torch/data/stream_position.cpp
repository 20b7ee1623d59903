#include "torch/data/stream_position.hpp"

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "torch/checkpoint/json_fields.hpp"
#include "torch/data/read_state.hpp"

namespace kolo::tensors {

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
    elements = to_unsigned(fields.at("elements"));
  });
  epoch_ = epoch;
  start_ = elements;
  consumed_ = 0;
}

}  // namespace kolo::tensors
