#include "common/training_error.hpp"

#include <cstddef>

#include "common/agreement.hpp"
#include "kolo/runtime.hpp"

namespace examples {

std::string training_error(const TrainedDigests& digests) {
  const bool ranks_agree = ranks_that_differ(digests.together.value()).empty();
  const std::size_t own_batches = ranks_that_differ(digests.alone.value()).size() + 1;
  if (digests.together.value() == digests.start.value()) return "the parameters did not change";
  if (!ranks_agree) return "the parameters differ between ranks";
  if (own_batches != static_cast<std::size_t>(kolo::size())) return "ranks had the same batches";
  return "";
}

}  // namespace examples
