#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "kolo/collectives.hpp"

namespace kolo::test {

struct TestTensor {
  std::string name;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;

  std::int64_t elements() const { return checkpoints::elements_of(shape).value(); }
  std::int64_t size() const { return checkpoints::bytes_of(dtype, elements()); }
};

using Bytes = std::vector<unsigned char>;

/// The bytes of a whole tensor, which depend on position, tensor and salt. Booleans are 0 or 1.
inline Bytes contents(const TestTensor& tensor, unsigned salt) {
  const auto size = static_cast<std::size_t>(tensor.size());
  std::uint64_t seed = salt * 0x9E3779B97F4A7C15u;
  for (const char letter : tensor.name) seed = seed * 131 + static_cast<unsigned char>(letter);
  constexpr std::size_t kWord = sizeof(std::uint64_t);  // bytes singly take most of a test's time
  Bytes bytes((size + kWord - 1) / kWord * kWord);
  for (std::size_t i = 0; i < bytes.size(); i += kWord) {
    std::uint64_t mixed = (seed + i) * 0xD1342543DE82EF95u;
    mixed ^= mixed >> 32;
    std::memcpy(bytes.data() + i, &mixed, kWord);
  }
  bytes.resize(size);
  if (tensor.dtype == DType::Bool) {
    for (unsigned char& byte : bytes) byte &= 1;
  }
  return bytes;
}

/// All dtypes, a scalar, no elements, fewer elements than ranks, several blocks of checksums.
inline std::vector<TestTensor> small_model() {
  return {
      {"u8", DType::UInt8, {7}},         {"i8", DType::Int8, {3, 5}},
      {"i16", DType::Int16, {11}},       {"i32", DType::Int32, {2, 1, 4}},
      {"i64", DType::Int64, {13}},       {"half", DType::Float16, {17, 3}},
      {"bfloat", DType::BFloat16, {9}},  {"weight", DType::Float32, {129, 31}},
      {"double", DType::Float64, {5}},   {"mask", DType::Bool, {19}},
      {"step", DType::Int64, {}},        {"nothing", DType::Float32, {0, 3}},
      {"c64", DType::Complex64, {3, 7}}, {"c128", DType::Complex128, {11}},
      {"two", DType::Float32, {2}},      {"größe \"q\"/\\", DType::Float32, {6}},
  };
}
inline std::vector<TestTensor> large_model() {
  std::vector<TestTensor> model = small_model();
  model.push_back({"large", DType::Float32, {1237, 701}});  // 3.3 MiB
  model.push_back({"blocks", DType::Float16, {1 << 20}});   // 2 MiB
  return model;
}

/// How tensors are sharded over ranks.
enum class Division { Evenly, ByTurns, LastHasAll };

/// Slices of all tensors, and the memory that they point to.
struct Slices {
  std::vector<Bytes> memory;
  std::vector<checkpoints::TensorSlice> slices;
};

inline std::int64_t share(const TestTensor& tensor, int size, int rank, Division division,
                          std::size_t index) {
  if (division == Division::Evenly) return scattered_rows(tensor.elements(), size, rank);
  const int owner = division == Division::LastHasAll ? size - 1 : static_cast<int>(index) % size;
  return rank == owner ? tensor.elements() : 0;
}

inline Slices own_slices(const std::vector<TestTensor>& model, int size, int rank, unsigned salt,
                         Division division = Division::Evenly) {
  Slices own;
  own.memory.reserve(model.size());
  for (std::size_t t = 0; t < model.size(); ++t) {
    const TestTensor& tensor = model[t];
    std::int64_t begin = 0;
    for (int r = 0; r < rank; ++r) begin += share(tensor, size, r, division, t);
    const std::int64_t count = share(tensor, size, rank, division, t);
    const Bytes whole = contents(tensor, salt);
    own.memory.emplace_back(whole.begin() + checkpoints::bytes_of(tensor.dtype, begin),
                            whole.begin() + checkpoints::bytes_of(tensor.dtype, begin + count));
    own.slices.push_back(
        {tensor.name, tensor.dtype, tensor.shape, begin, count, own.memory.back().data()});
  }
  return own;
}

inline Bytes read_slice(const checkpoints::Checkpoint& checkpoint, const TestTensor& tensor,
                        std::int64_t begin, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(checkpoints::bytes_of(tensor.dtype, count)));
  checkpoint.read(tensor.name, tensor.dtype, begin, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace kolo::test
