#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/cases/case.hpp"
#include "kolo/collectives.hpp"

namespace bench {

inline constexpr int kRoot = 0;  ///< of broadcasts

/// What calls of Kolo's public functions need to know besides the tensors.
struct Calls {
  Operation operation;
  kolo::DType dtype;
  int ranks;
  std::string name;  ///< of the first; others get a number
  std::string compression;
  kolo::Device device{};   ///< where the tensors lie
  void* stream = nullptr;  ///< on a GPU, the program's

  kolo::TensorView view(std::byte* data, std::size_t count) const;
  kolo::TensorView input(const Tensor& tensor) const;
  kolo::TensorView output(const Tensor& tensor) const;
  kolo::OperationOptions options(const std::string& suffix = "") const;
  kolo::AllreduceOptions reduce_options(const std::string& suffix = "") const;
};

constexpr bool has_groups(Operation operation) { return operation != Operation::AllToAll; }

/// All tensors in one group.
void run_group(const Calls& calls, const std::vector<Tensor>& tensors);

/// All tensors at once, each under a name of its own.
void run_each(const Calls& calls, const std::vector<Tensor>& tensors,
              const std::vector<std::string>& suffixes);

/// Of so many names.
std::vector<std::string> suffixes_of(std::size_t count);

}  // namespace bench
