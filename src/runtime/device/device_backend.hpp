#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/codec_format.hpp"
#include "comm/gpu/device_communicator.hpp"
#include "kolo/dtype.hpp"
#include "kolo/task.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/backend.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/device/device_path.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// How a reduction runs on GPUs.
///
/// Through the communicator:
///   1 if it is staged, elements are converted to `wire`, multiplied by `before` and copied into a
///     staging buffer;
///   2 they are combined as `reduction` says;
///   3 they are multiplied by `after`, divided by `divisor` and converted back, if that changes
///     anything.
/// By direct exchange (see DeviceExchange), step 2 multiplies by `before` and `after`.
struct DevicePlan {
  DType wire = DType::Float32;
  bool is_direct = false;
  bool is_staged = false;
  double before = 1.0;
  comm::DeviceReduction reduction{};
  double after = 1.0;
  std::int64_t divisor = 1;

  /// Whether step 3 changes elements of `dtype` in place.
  bool changes(DType dtype) const { return wire != dtype || after != 1.0 || divisor != 1; }
};

/// What a plan depends on in addition to the request.
struct DeviceSituation {
  DType dtype;
  DType payload;                ///< the type that `dtype` is compressed to, or `dtype`
  int size;                     ///< that averages divide by
  int ranks;                    ///< of the process set
  bool needs_staging = false;   ///< whatever the types are
  bool only_adds = false;       ///< the communicator's best algorithms apply no factor
  bool prefers_direct = false;  ///< sum floating types in rank order
};

/// Plans a reduction other than Custom. The communicator scales floating-point sums that are not
/// staged while it combines them. With a single rank (see DeviceReduction) and with `only_adds`
/// they are scaled afterwards; but with `only_adds` and several ranks, float16 and what the program
/// prescales are staged, since the sum might overflow. Staged ones are scaled in float32 while they
/// are copied. int16, which NCCL cannot reduce, is sent as int32. Averages follow
/// ops::plan_reduction. Adasum is always direct.
/// @throws InvalidArgument for reductions that are not defined
DevicePlan plan_on_device(const Request& request, const DeviceSituation& situation);

/// Sums on GPUs through a codec. The algorithms, pieces and blocks are those of
/// ops/allreduce_coded.cpp and ops/reduce_scatter_coded.cpp on the CPU, and so are the bits:
///
///   1 contribute  every rank encodes piece p of its input and sends it to rank p, for all p
///   2 combine     rank p decodes and adds up piece p from all ranks, in rank order, in float32
///   3 gather      rank p encodes the sum and sends it to all ranks; all decode it (all-reduce)
///
/// A payload's size is known beforehand, so no rank waits for a GPU. The tensor is not cut into
/// segments: staging memory holds everything that is sent and received, and the sums of a piece in
/// float32.
class CodedExchange {
 public:
  /// `path` outlives it.
  explicit CodedExchange(const DevicePath& path) : path_(path) {}

  /// Multiplies sums by `scale`. The communicator has at least two ranks, and is ready before and
  /// after the call.
  Task all_reduce(base::CodecFormat format, ReductionItem item, double scale);
  /// Each rank keeps `counts[rank]` elements.
  Task reduce_scatter(base::CodecFormat format, ReductionItem item,
                      std::span<const std::size_t> counts, double scale);

 private:
  /// Staging memory of one exchange.
  struct Staging {
    std::byte* sent;
    std::byte* received;
    float* sum;
  };

  std::size_t rank() const { return static_cast<std::size_t>(path_.communicator.rank()); }
  std::size_t size() const { return static_cast<std::size_t>(path_.communicator.size()); }
  Task contribute(base::CodecFormat format, ReductionItem item, std::span<const ops::Range> pieces,
                  Staging staging);
  void combine(base::CodecFormat format, ReductionItem item, ops::Range own, Staging staging,
               float* residual);

  const DevicePath& path_;
};

/// Reductions on GPUs by direct exchange, as ops/allreduce_direct.cpp does them on the CPU:
///
///   1 contribute  every rank sends piece p of its elements to rank p, for all p
///   2 combine     rank p sums piece p of all ranks, in rank order, in float32 or float64
///   3 gather      rank p sends the result to all ranks
///
/// One rank combines all inputs of an element, so a sum has the same bits in every run and on any
/// number of nodes, and the same as in rank order on the CPU. A rank sends 2 (n-1)/n times the
/// elements, as in a ring. Staging memory holds n times the longest piece, and all elements if they
/// are packed.
///
/// Adasum of a tensor is a weighted sum (see ops::AdasumWeights). Between 1 and 2 each rank
/// computes the dot products of the pieces that it has received, and those of all ranks are summed.
class DeviceExchange {
 public:
  /// `path` outlives it.
  explicit DeviceExchange(const DevicePath& path) : path_(path) {}

  /// `plan` must be direct. The communicator is ready before and after the call.
  Task all_reduce(const DevicePlan& plan, std::span<const ReductionItem> items);
  /// Each rank keeps `counts[rank]` elements.
  Task reduce_scatter(const DevicePlan& plan, ReductionItem item,
                      std::span<const std::size_t> counts);

 private:
  /// The piece that this rank combines: the inputs of all ranks, and the result.
  struct Piece {
    std::byte* received;
    std::byte* result;
    ops::Range own;  // of all elements
  };
  /// Adasum's memory: matrices of dot products, weights, and partial matrices.
  struct Products {
    std::byte* matrices;
    std::byte* weights;
    std::byte* partial;
  };

  std::size_t rank() const { return static_cast<std::size_t>(path_.communicator.rank()); }
  std::size_t size() const { return static_cast<std::size_t>(path_.communicator.size()); }
  Task contribute(const std::byte* from, std::span<const std::size_t> counts, DType wire,
                  std::byte* received);
  Task combine_adasum(const DevicePlan& plan, std::span<const ReductionItem> items, Piece piece,
                      Products products);
  comm::DeviceVectors vectors_of(const DevicePlan& plan, Piece piece, ops::Range range) const;
  void add_up(const DevicePlan& plan, Piece piece, ops::Range range, const double* weights);

  const DevicePath& path_;
};

/// Launches the collectives of an engine on its stream: through the communicator of GPUs,
/// DeviceExchange or CodedExchange. Reductions that are fused or converted are packed in staging
/// memory, with scaling in the same pass; all others run in place. What goes through the
/// communicator is launched in one group, as are tensors that are only moved, so a batch of one
/// dtype costs one pack, one launch and one unpack. The communicator is ready when a Task begins
/// and when it ends.
class DeviceBackend final : public Backend {
 public:
  /// All arguments outlive the backend.
  DeviceBackend(const DataPath& path, comm::Gpu& gpu, comm::DeviceCommunicator& communicator,
                comm::DeviceStream stream, RingTraffic& traffic)
      : path_(path), staging_(path, gpu), device_{gpu, communicator, stream, traffic, staging_} {}
  DeviceBackend(const DeviceBackend&) = delete;  // its parts refer to one another
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  Task all_reduce(const Request& request, std::span<const ReductionItem> items,
                  JoinedRanks joined) override;
  Task reduce_scatter(const Request& request, std::span<const ReductionItem> items,
                      std::span<const std::vector<std::size_t>> counts,
                      JoinedRanks joined) override;
  Task move(Collective collective, std::span<const Move> moves) override;
  bool may_allocate(const Operation& operation) override;
  void await_allocation(const Operation& operation) override;

  /// Call it after a batch: returns owners of outgrown memory, to be kept until what was launched
  /// so far has completed.
  std::vector<std::shared_ptr<void>> take_outgrown() { return staging_.take_outgrown(); }

  std::uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  /// More staging memory than this is not worth one group less.
  static constexpr std::size_t kMostStaged = std::size_t{64} << 20;

  /// A reduction through the communicator: of one tensor in place, or of several that are packed.
  struct Reduction {
    DevicePlan plan;
    DType dtype;
    std::size_t count;                       // elements, of real types
    ops::Range kept{};                       // that this rank keeps
    std::vector<std::size_t> counts{};       // reduce-scatter: that each rank keeps
    std::vector<comm::DeviceRun> tensors{};  // from the inputs to the outputs

    std::size_t staged_bytes() const { return plan.is_staged ? count * size_of(plan.wire) : 0; }
  };

  DevicePlan plan_of(const Request& request, std::span<const ReductionItem> items,
                     JoinedRanks joined) const;
  Reduction make_reduction(const DevicePlan& plan, std::span<const ReductionItem> items,
                           std::vector<std::size_t> counts) const;
  Task reduce(const std::vector<Reduction>& reductions);
  Task reduce_group(std::span<const Reduction> group);
  void launch(const Reduction& reduction, std::byte* place);
  void launch_move(Collective collective, const CollectiveCall& call, std::size_t bytes);
  const base::CodecFormat* format_of(const Request& request, DType dtype) const;
  double coded_scale(const Request& request, JoinedRanks joined) const;

  const DataPath& path_;
  DeviceStaging staging_;
  const DevicePath device_;
  DeviceExchange exchange_{device_};
  CodedExchange coded_exchange_{device_};
  EventPool events_{&comm::Gpu::make_event};
  std::uint64_t bytes_packed_ = 0;
};

}  // namespace kolo::runtime
