#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kolo {

class Runtime;

namespace runtime {
class Lane;
}

/// A group of ranks that run collectives together; the world is one. Sets may overlap, and none
/// waits for another. Owned by its Runtime; known on every rank of the world, members or not. See
/// Runtime::add_process_set.
class ProcessSet {
 public:
  /// `lane` is null where this rank is no member.
  ProcessSet(Runtime& runtime, int number, std::vector<int> ranks,
             std::shared_ptr<runtime::Lane> lane);
  ProcessSet(const ProcessSet&) = delete;  // operations refer to it
  ProcessSet& operator=(const ProcessSet&) = delete;

  /// Whether this rank is a member.
  bool included() const { return lane_ != nullptr; }
  /// This rank's place in the set, 0 … size()-1; gathered results come in this order. -1 where it
  /// is no member.
  int rank() const;
  int size() const { return static_cast<int>(ranks_.size()); }
  /// World ranks of the members, ascending.
  const std::vector<int>& ranks() const { return ranks_; }
  /// "world", or its ranks as in "{0, 2}".
  std::string name() const;
  /// 0 for the world; those added later count from 1 in the order in which they were added, the
  /// same on all ranks.
  int number() const { return number_; }
  Runtime& runtime() const { return runtime_; }

  /// A name for something unnamed of this kind: the same on all members that make the same calls in
  /// the same order. Throws InvalidArgument where this rank is no member.
  std::string next_name(std::string_view kind) const;

  /// What the set did so far on this rank.
  struct Metrics {
    std::uint64_t exchanges = 0;            ///< of headers
    std::uint64_t fruitless_exchanges = 0;  ///< after which nothing could run
    std::uint64_t wake_up_requests = 0;     ///< exchanges that this rank hurried
    std::uint64_t negotiations = 0;         ///< exchanges in which something was new or wrong
    std::uint64_t header_bytes = 0;         ///< shown or sent by this rank
    std::uint64_t bytes_sent = 0;    ///< payload sent, or moved to or from others' shared memory
    std::uint64_t bytes_packed = 0;  ///< payload copied to fuse tensors or to compress them
    /// That operations took on this rank's GPU, from the first kernel of a batch to its last,
    /// waiting for other ranks' GPUs there included; of those that the host has seen end.
    double gpu_seconds = 0.0;
  };
  /// Throws InvalidArgument where this rank is no member.
  Metrics metrics() const;

  /// For the layers above, which submit operations of their own. Throws InvalidArgument where this
  /// rank is no member.
  const std::shared_ptr<runtime::Lane>& lane() const;

 private:
  Runtime& runtime_;
  int number_;
  std::vector<int> ranks_;
  std::shared_ptr<runtime::Lane> lane_;
};

}  // namespace kolo
