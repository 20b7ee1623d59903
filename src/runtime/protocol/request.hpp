#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/compression.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"
#include "kolo/tensor_view.hpp"

namespace kolo::runtime {

/// The properties of a tensor that ranks must agree on.
struct TensorType {
  DType dtype = DType::Float32;
  /// All-gather and all-to-all: without dimension 0, which may differ between ranks.
  std::vector<std::int64_t> shape;

  bool operator==(const TensorType&) const = default;

  std::size_t count() const;       ///< elements (all-gather, all-to-all: of one row)
  std::size_t size_bytes() const;  ///< bytes of these elements
};

/// An operation that a rank wants to run: a name, and everything that the ranks must agree on under
/// that name. A new field must be added to first_difference() and can_fuse() (request.cpp), to
/// wire.fbs, to pack() and unpack() (wire.cpp), and to stamp_of() (ordered_communicator.cpp).
struct Request {
  std::string name;
  Collective collective = Collective::AllReduce;
  std::vector<TensorType> tensors;  ///< several: a group, which runs and fails as one
  ReduceOp op = ReduceOp::Sum;      ///< reductions only, as all fields down to `join_divisor`
  std::string custom;               ///< the name of a Custom reduction
  double prescale = 1.0;
  double postscale = 1.0;
  JoinDivisor join_divisor = JoinDivisor::World;
  int root = 0;  ///< broadcast; a world rank
  DeviceKind device = DeviceKind::Cpu;
  std::string compression = "none";  ///< reductions: a compressor's name
  CompressionScope compression_scope = CompressionScope::Everywhere;  ///< all-reduce
  std::string placement;  ///< the tensor's shared memory, e.g. "window 3 + 4096"; or empty
  /// A `placement`: the ranks of a node share an all-gather's output, or the memory to be
  /// allocated.
  static constexpr std::string_view kOncePerNode = "once per node";
  /// All-gather: each rank's rows, of every tensor; empty: the ranks exchange them when it runs.
  std::vector<std::int64_t> rows;
  std::vector<int> members;  ///< add, remove process set: world ranks
  int set_number = 0;        ///< remove process set
  bool fusible = true;       ///< may run in one batch with other requests
  std::string purpose;       ///< given by the caller, for ranks to compare
  /// The reason why the call is invalid on the rank that made it; empty: it is valid. An invalid
  /// request never runs: this text becomes the error of all ranks.
  std::string invalid_reason;

  bool operator==(const Request&) const = default;

  std::size_t size_bytes() const;  ///< of all tensors
  bool is_once_per_node() const { return placement == kOncePerNode; }
  /// Whether the program allocates outputs when the ranks have exchanged row counts.
  bool has_allocated_outputs() const {
    return rows.empty() &&
           (collective == Collective::AllGather || collective == Collective::AllToAll);
  }
  /// Whether it is an operation on SharedBuffers.
  bool is_on_buffers() const { return !placement.empty() && !is_once_per_node(); }
};

/// A request that many hold and none changes: copied by reference, compared by value. May be empty.
class SharedRequest {
 public:
  SharedRequest() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): it stands for a request
  SharedRequest(Request request) : request_(std::make_shared<const Request>(std::move(request))) {}

  explicit operator bool() const { return request_ != nullptr; }
  const Request& operator*() const { return *request_; }
  const Request* operator->() const { return request_.get(); }

  friend bool operator==(const SharedRequest& a, const SharedRequest& b) {
    return a.request_ == b.request_ || (a && b && *a == *b);
  }

 private:
  std::shared_ptr<const Request> request_;
};

/// "allreduce 'layer1.weight'", for error texts.
std::string describe(const Request& request);

/// Whether two requests may run in one batch, regardless of their sizes.
bool can_fuse(const Request& first, const Request& second);

/// The first field in which two requests of one name differ, with both values, for an error text:
/// {"shape", "[3, 4]", "[4, 4]"}.
struct Difference {
  std::string field;
  std::string first;
  std::string second;
};
Difference first_difference(const Request& first, const Request& second);

}  // namespace kolo::runtime
