// Access to elements and payloads for the kernels of device_codecs.cu, and their threads.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/codec_format.hpp"
#include "comm/gpu/gpu.hpp"
#include "ops/kernels/coded_table.hpp"
#include "ops/kernels/device_elements.cuh"

namespace kolo::ops {

// A Team is the threads of a GPU block. each(work) calls `work(thread)` for all of them, and
// returns when all calls have returned: on a GPU, after a barrier. add(counter, n) lets several
// threads add to one counter.

/// Calls `work(i)` for all `i` below `count`, neighbouring ones on neighbouring threads.
template <class Team, class Work>
__host__ __device__ void for_each(const Team& team, std::uint32_t count, const Work& work) {
  team.each([&](std::uint32_t thread) {
    for (std::uint32_t i = thread; i < count; i += kCodecThreads) work(i);
  });
}

template <class Team, class Work>
__host__ __device__ void on_one_thread(const Team& team, const Work& work) {
  team.each([&](std::uint32_t thread) {
    if (thread == 0) work();
  });
}

/// Element `i` of a floating type. All threads take the same branch. A kernel per type would mean
/// four times as many kernels, none of them faster, as they wait for memory.
__host__ __device__ inline float load_element(const std::byte* elements, DType dtype,
                                              std::uint64_t i) {
  switch (dtype) {
    case DType::Float16: return to_float(reinterpret_cast<const __half*>(elements)[i]);
    case DType::BFloat16: return to_float(reinterpret_cast<const __nv_bfloat16*>(elements)[i]);
    case DType::Float64: return to_float(reinterpret_cast<const double*>(elements)[i]);
    default: return reinterpret_cast<const float*>(elements)[i];
  }
}

__host__ __device__ inline void store_element(std::byte* elements, DType dtype, std::uint64_t i,
                                              float value) {
  switch (dtype) {
    case DType::Float16: reinterpret_cast<__half*>(elements)[i] = from_float<__half>(value); return;
    case DType::BFloat16:
      reinterpret_cast<__nv_bfloat16*>(elements)[i] = from_float<__nv_bfloat16>(value);
      return;
    case DType::Float64: reinterpret_cast<double*>(elements)[i] = value; return;
    default: reinterpret_cast<float*>(elements)[i] = value;
  }
}

/// 4-byte words of a payload, which must be aligned.
__host__ __device__ inline float load_word(const std::byte* payload) {
  return *reinterpret_cast<const float*>(payload);
}
__host__ __device__ inline void store_word(std::byte* payload, float value) {
  *reinterpret_cast<float*>(payload) = value;
}

/// A tile to encode: its elements and their residuals.
struct TileInput {
  const std::byte* elements;
  DType dtype;
  std::uint64_t first;
  std::uint32_t count;
  float* residual;  ///< of the first element; may be null

  __host__ __device__ float at(std::uint32_t i) const {
    const float value = load_element(elements, dtype, first + i);
    return residual == nullptr ? value : value + residual[i];
  }
  /// Updates a residual; `value` is the element plus its old residual. Every decoder adds to 0.
  __host__ __device__ void set_residual(std::uint32_t i, float value, float decoded) const {
    if (residual != nullptr) residual[i] = value - (0.0F + decoded);
  }
};

__host__ __device__ inline TileInput input_of(const CodedPart& part, DType dtype) {
  return {part.run.from, dtype, part.first, part.count,
          part.run.residual == nullptr ? nullptr : part.run.residual + part.first};
}

/// The output of a decoded tile.
struct TileOutput {
  std::byte* elements;
  DType dtype;
  std::uint64_t first;
  std::uint32_t count;
  float factor;

  __host__ __device__ void put(std::uint32_t i, float decoded) const {
    store_element(elements, dtype, first + i, product(0.0F + decoded, factor));
  }
};

/// The payloads of one tile from each rank, and this rank's elements.
struct TileSum {
  const comm::CodedInputs& inputs;
  CodedPart part;
  std::uint64_t rank_bytes;  ///< from one rank's payloads to the next
  float* sum;

  __host__ __device__ bool is_own(int rank) const { return rank == inputs.own; }
  __host__ __device__ float own_at(std::uint32_t i) const {
    return load_element(inputs.elements, inputs.dtype, part.first + i);
  }
  __host__ __device__ const std::byte* payloads(int rank) const {
    const int place = rank < inputs.own ? rank : rank - 1;
    return inputs.payloads + static_cast<std::uint64_t>(place) * rank_bytes + part.payload;
  }
  /// Stores an element's sum, after adding the residual.
  __host__ __device__ void finish(std::uint32_t i, float added) const {
    if (inputs.residual != nullptr) {
      float& residual = inputs.residual[part.first + i];
      added += residual;
      if (base::is_finite(added)) residual = 0.0F;
    }
    sum[part.first + i] = added;
  }
};

}  // namespace kolo::ops
