#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/device.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::runtime {

/// What a rank wants to run: a name, and all that the ranks must agree on under that name.
struct Request {
  std::string name;
  Collective collective = Collective::AllReduce;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;  ///< all-gather: without dimension 0, which may differ
  ReduceOp op = ReduceOp::Sum;      ///< all-reduce
  double prescale = 1.0;            ///< all-reduce
  double postscale = 1.0;           ///< all-reduce
  int root = 0;                     ///< broadcast; a world rank
  DeviceKind device = DeviceKind::Cpu;
  std::string compression = "none";  ///< all-reduce: a compressor's name
  std::string placement;  ///< shared memory the tensor lives in, e.g. "window 3 + 4096"; or empty
  bool fusible = true;    ///< may run in one batch with others

  bool operator==(const Request&) const = default;

  /// Bytes of the tensor (all-gather: of one row).
  std::size_t size_bytes() const;
};

/// As in "allreduce 'layer1.weight'", for error texts.
std::string describe(const Request& request);

/// Whether two requests may run in one batch, sizes aside.
bool can_fuse(const Request& first, const Request& second);

/// The first field in which two requests of one name differ and both its values, for an error text:
/// {"shape", "[3, 4]", "[4, 4]"}.
struct Difference {
  std::string field;
  std::string first;
  std::string second;
};
Difference first_difference(const Request& first, const Request& second);

}  // namespace kolo::runtime
