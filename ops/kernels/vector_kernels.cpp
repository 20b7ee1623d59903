#include "ops/kernels/vector_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "base/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels/vector_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "base/simd_lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kolo::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::BFloat16Lanes;
using base::HWY_NAMESPACE::Float16Lanes;
using base::HWY_NAMESPACE::PlainLanes;

struct Sum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Add(a, b);
  }
};
struct Product {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Mul(a, b);
  }
};

// The instructions for min and max drop a NaN in one of their operands.
template <class V>
HWY_INLINE V first_if(hn::Mask<hn::DFromV<V>> is_first, V a, V b) {
  return hn::IfThenElse(hn::Or(is_first, hn::IsNaN(a)), a, b);
}
struct Min {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
      return first_if(hn::Lt(a, b), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};
struct Max {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
      return first_if(hn::Gt(a, b), a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct BitAnd {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::And(a, b);
  }
};
struct BitOr {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Or(a, b);
  }
};
struct BitXor {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Xor(a, b);
  }
};

/// The loop of one element type and operation. Integers are unscaled.
template <class Lanes, class Op>
class Combiner {
 public:
  explicit Combiner(const CombineCall& call)
      : call_(call),
        has_prescale_(call.prescale != 1.0),
        has_postscale_(call.postscale != 1.0),
        prescale_(hn::Set(D(), static_cast<T>(call.prescale))),
        postscale_(hn::Set(D(), static_cast<T>(call.postscale))) {}

  HWY_INLINE void run() const {
    const std::size_t lanes = Lanes::size();
    std::size_t i = call_.begin;
    for (; i + kUnroll * lanes <= call_.end; i += kUnroll * lanes) combine_vectors<kUnroll>(i);
    for (; i + lanes <= call_.end; i += lanes) combine_vectors<1>(i);
    if (i < call_.end) combine_rest(i);
  }

 private:
  using D = typename Lanes::D;
  using Vector = typename Lanes::Vector;
  using Element = typename Lanes::Element;
  using T = hn::TFromD<D>;
  static constexpr std::size_t kUnroll = 4;
  static constexpr bool kIsFloating = std::is_floating_point_v<T>;

  const Element* input(std::size_t which) const {
    return reinterpret_cast<const Element*>(call_.inputs[which]);
  }
  Element* output(std::size_t which) const {
    return reinterpret_cast<Element*>(call_.outputs[which]);
  }

  HWY_INLINE Vector load(const Element* from) const {
    const Vector value = Lanes::load(from);
    if constexpr (kIsFloating) {
      if (has_prescale_) return hn::Mul(value, prescale_);
    }
    return value;
  }
  HWY_INLINE Vector finish(Vector value) const {
    if constexpr (kIsFloating) {
      if (has_postscale_) return hn::Mul(value, postscale_);
    }
    return value;
  }

  /// Combines all inputs' `kCount` vectors from element `i` on, with partial results in registers.
  template <std::size_t kCount>
  HWY_INLINE void combine_vectors(std::size_t i) const {
    const std::size_t lanes = Lanes::size();
    Vector results[kCount];
    for (std::size_t j = 0; j < kCount; ++j) results[j] = load(input(0) + i + j * lanes);
    for (std::size_t k = 1; k < call_.inputs.size(); ++k) {
      const Element* from = input(k) + i;
      for (std::size_t j = 0; j < kCount; ++j) {
        results[j] = Op::apply(results[j], load(from + j * lanes));
      }
    }
    for (std::size_t j = 0; j < kCount; ++j) results[j] = finish(results[j]);
    for (std::size_t k = 0; k < call_.outputs.size(); ++k) {
      Element* to = output(k) + i;
      for (std::size_t j = 0; j < kCount; ++j) Lanes::store(results[j], to + j * lanes);
    }
  }

  /// Combines the elements from `i` on, less than a vector, padded to a whole one.
  HWY_INLINE void combine_rest(std::size_t i) const {
    const std::size_t length = call_.end - i;
    HWY_ALIGN std::array<Element, hn::MaxLanes(D())> rest{};
    const auto load_rest = [&](std::size_t k) HWY_ATTR {
      std::copy_n(input(k) + i, length, rest.begin());
      return load(rest.data());
    };
    Vector result = load_rest(0);
    for (std::size_t k = 1; k < call_.inputs.size(); ++k) result = Op::apply(result, load_rest(k));
    Lanes::store(finish(result), rest.data());
    for (std::size_t k = 0; k < call_.outputs.size(); ++k) {
      std::copy_n(rest.begin(), length, output(k) + i);
    }
  }

  const CombineCall& call_;
  bool has_prescale_;
  bool has_postscale_;
  Vector prescale_;
  Vector postscale_;
};

template <class Lanes, class Op>
void combine_vectors_of(const CombineCall& call) {
  Combiner<Lanes, Op>(call).run();
}

template <class Lanes>
CombineFunction find_op(ReduceOp op) {
  if constexpr (std::is_integral_v<hn::TFromD<typename Lanes::D>>) {
    if (op == ReduceOp::BitAnd) return combine_vectors_of<Lanes, BitAnd>;
    if (op == ReduceOp::BitOr) return combine_vectors_of<Lanes, BitOr>;
    if (op == ReduceOp::BitXor) return combine_vectors_of<Lanes, BitXor>;
  }
  switch (op) {
    case ReduceOp::Sum: return combine_vectors_of<Lanes, Sum>;
    case ReduceOp::Min: return combine_vectors_of<Lanes, Min>;
    case ReduceOp::Max: return combine_vectors_of<Lanes, Max>;
    case ReduceOp::Product:
      // There are no vector multiplications of bytes.
      if constexpr (sizeof(typename Lanes::Element) > 1) return combine_vectors_of<Lanes, Product>;
      break;
    default: break;
  }
  return nullptr;
}

/// Adds complex numbers, whose real and imaginary parts `Lanes` holds.
template <class Lanes>
void add_complex(const CombineCall& call) {
  CombineCall parts = call;
  parts.begin *= 2;
  parts.end *= 2;
  Combiner<Lanes, Sum>(parts).run();
}

CombineFunction find_kernel(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::Bool:
    case DType::UInt8: return find_op<PlainLanes<std::uint8_t>>(op);
    case DType::Int8: return find_op<PlainLanes<std::int8_t>>(op);
    case DType::Int16: return find_op<PlainLanes<std::int16_t>>(op);
    case DType::Int32: return find_op<PlainLanes<std::int32_t>>(op);
    case DType::Int64: return find_op<PlainLanes<std::int64_t>>(op);
    case DType::Float16: return find_op<Float16Lanes>(op);
    case DType::BFloat16: return find_op<BFloat16Lanes>(op);
    case DType::Float32: return find_op<PlainLanes<float>>(op);
    case DType::Float64: return find_op<PlainLanes<double>>(op);
    case DType::Complex64: return op == ReduceOp::Sum ? add_complex<PlainLanes<float>> : nullptr;
    case DType::Complex128: return op == ReduceOp::Sum ? add_complex<PlainLanes<double>> : nullptr;
  }
  return nullptr;
}

}  // namespace kolo::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kolo::ops {

HWY_EXPORT(find_kernel);

CombineFunction find_vector_kernel(DType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(find_kernel)(dtype, op);
}

}  // namespace kolo::ops
#endif  // HWY_ONCE
