#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kolo/collectives.hpp"
#include "train/gradients/parameter_watch.hpp"
#include "train/sharding/gathered_units.hpp"
#include "train/sharding/operator_watch.hpp"

namespace kolo::train {

/// Parameters without gradients, with Shard::Full. The ranks of a node share one copy of them, or
/// they are gathered with trained parameters.
class FrozenParameters {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  /// The parameters of `all` that get no gradient and whose elements can be moved: on the device,
  /// contiguous and in a storage of their own.
  static std::vector<ReducedParameter> movable(const std::vector<ReducedParameter>& all,
                                               const at::Device& device);

  /// Moves parameters to one copy for the set of `options`, which names the memory. Values are
  /// those of that set's first rank. Collective over the set.
  void share(const std::vector<ReducedParameter>& parameters, const OperationOptions& options);
  /// Adds parameters that are gathered with these units.
  void add(const std::vector<ReducedParameter>& parameters, const GatheredUnits& units);

  /// All parameters except those that an optimizer has moved since: it moves them once they get
  /// gradients.
  Named parameters() const;
  /// This rank's share of each, which it writes to checkpoints and reads from them.
  std::vector<std::pair<ReducedParameter, ElementRange>> shares() const;
  /// Throws InvalidArgument if the program has moved or written one.
  void require_untouched() const;
  /// All ranks have written them with the same values.
  void accept_writes();

 private:
  struct Frozen {
    ReducedParameter parameter;
    ElementRange share;
    const void* address;
    std::uint32_t version;
  };
  void add(const ReducedParameter& parameter, ElementRange share);
  bool is_elsewhere(const Frozen& frozen) const;

  std::vector<Frozen> frozen_;
  std::weak_ptr<void> memory_;            // of the copy: while it lives, its address is not reused
  const GatheredUnits* units_ = nullptr;  // null: there is one copy
};

}  // namespace kolo::train
