#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/collectives.hpp"
#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// Parameters without gradients, of which the ranks of a node share one copy as of those that are
/// trained. Nothing updates them.
class FrozenParameters {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  /// Moves the parameters that get no gradient to one copy for the set of `options`, which has the
  /// memory's name; values are those of that set's first rank. Those whose elements cannot be moved
  /// stay: on GPUs, not contiguous, or in a storage with others; all of them where ranks share no
  /// memory. `parameters` are all of the model, each once. Collective over `all`. Throws
  /// MismatchError on all ranks if parameters differ.
  void share(const Named& parameters, ProcessSet& all, const OperationOptions& options);

  /// Those that share() has moved and no optimizer has moved again, as it does once they get
  /// gradients.
  Named parameters() const;
  /// Throws InvalidArgument if the program has moved or written one.
  void require_untouched() const;
  /// They have been written on all ranks alike.
  void accept_writes();

 private:
  struct Frozen {
    std::string name;
    at::Tensor tensor;
    const void* address;
    std::uint32_t version;
  };
  /// Whether an optimizer has moved it since, which watches it.
  bool is_elsewhere(const Frozen& parameter) const;

  std::vector<Frozen> frozen_;
  std::weak_ptr<void> memory_;  // while it lives, nothing else lies at the addresses
};

}  // namespace kolo::tensors
