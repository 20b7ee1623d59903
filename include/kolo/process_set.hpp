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

/// A group of ranks that run collectives together; the world is one. Owned by its Runtime.
class ProcessSet {
 public:
  ProcessSet(Runtime& runtime, std::shared_ptr<runtime::Lane> lane);
  ProcessSet(const ProcessSet&) = delete;  // operations refer to it
  ProcessSet& operator=(const ProcessSet&) = delete;

  /// This rank's place in the set, 0 … size()-1; gathered results come in this order.
  int rank() const;
  int size() const;
  /// World ranks of the members, ascending.
  const std::vector<int>& ranks() const;
  const std::string& name() const;
  Runtime& runtime() const { return runtime_; }

  /// A name for something unnamed of this kind: the same on all ranks that make the same calls in
  /// the same order.
  std::string next_name(std::string_view kind) const;

  /// What the set did so far on this rank.
  struct Metrics {
    std::uint64_t exchanges = 0;            ///< of headers
    std::uint64_t fruitless_exchanges = 0;  ///< after which nothing could run
    std::uint64_t asks = 0;                 ///< exchanges that this rank hurried
    std::uint64_t negotiations = 0;         ///< exchanges in which something was new or wrong
    std::uint64_t header_bytes = 0;         ///< shown or sent by this rank
    std::uint64_t bytes_sent = 0;    ///< payload sent, or moved to or from others' shared memory
    std::uint64_t bytes_packed = 0;  ///< payload copied to fuse tensors or to compress them
  };
  Metrics metrics() const;

  /// For the layers above, which submit operations of their own.
  const std::shared_ptr<runtime::Lane>& lane() const { return lane_; }

 private:
  Runtime& runtime_;
  std::shared_ptr<runtime::Lane> lane_;
};

}  // namespace kolo
