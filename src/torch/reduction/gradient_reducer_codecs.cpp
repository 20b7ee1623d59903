// GradientReducer: codecs and hooks with error feedback.
#include <cstddef>
#include <vector>

#include "runtime/lane/lane.hpp"
#include "torch/reduction/gradient_reducer.hpp"

namespace kolo::tensors {

void GradientReducer::lay_out_residuals(const Residuals::ByParameter& residuals) {
  const GradientCompression& compression = setup_.compression;
  std::vector<Residuals::Part> parts;
  for (const Bucket& bucket : buckets().buckets()) {
    Residuals::Part part{0, bucket.gradient_count()};
    if (compression.is_piecewise() && !setup_.hook.error_feedback) {
      const ops::NodePlaces places = setup_.options.process_set->lane()->node_places();
      const ops::Range piece = places.own_piece(part.count);
      part = {piece.begin, piece.length};
    } else if (compression.is_of_replicas) {  // of this rank's shard
      const auto sharers = static_cast<std::size_t>(setup_.sets.sharded->size());
      const bool has_replicas = shards_ && setup_.sets.replicas != nullptr;
      part.count = has_replicas ? part.count / sharers : 0;
      part.begin = static_cast<std::size_t>(setup_.sets.sharded->rank()) * part.count;
    }
    const bool has_feedback = (compression.has_codec(bucket) && compression.has_error_feedback) ||
                              (setup_.hook.error_feedback && !is_complex(bucket.dtype));
    if (!has_feedback) part = {};
    parts.push_back(part);
  }
  residuals_.lay_out(buckets().buckets(), parts, tensors_, residuals);
}

/// A codec's residual belongs to the gradient in its bucket, so compressed ones become dense.
std::vector<bool> GradientReducer::can_stay_sparse(std::vector<bool> sparse) const {
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (setup_.compression.codec != nullptr && parameters_[i].is_compressed) sparse[i] = false;
  }
  return sparse;
}

}  // namespace kolo::tensors
