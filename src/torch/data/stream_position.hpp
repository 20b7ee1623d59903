#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kolo::tensors {

/// The elements of a stream that belong to one rank, and how many of them it has consumed. See
/// StreamShard.
class StreamPosition {
 public:
  /// Throws InvalidArgument if `block` is 0.
  StreamPosition(std::size_t block, int rank, int ranks);

  bool takes(std::uint64_t element) const;
  std::uint64_t start() const { return start_; }
  std::int64_t epoch() const { return epoch_; }

  void consume(std::size_t elements) { consumed_ += elements; }
  void end_epoch();

  std::string state() const;
  void set_state(const std::string& text);

 private:
  std::uint64_t block_;
  std::uint64_t rank_;
  std::uint64_t ranks_;
  std::int64_t epoch_ = 0;
  std::uint64_t start_ = 0;     // the first element of the epoch, or of the rest of a resumed one
  std::uint64_t consumed_ = 0;  // by this rank, since then
};

}  // namespace kolo::tensors
