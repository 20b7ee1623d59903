#include "programs/values.hpp"

#include <limits>
#include <numeric>

#include "contract/reference_access.hpp"

namespace kolo::programs {
namespace {

template <bool kIsSum>
void combine(DType dtype, const void* next, void* accumulator, std::size_t count) {
  const bool is_sum = kIsSum && dtype != DType::Bool;
  test::with_access(dtype, [&](auto access) {
    const auto* from = static_cast<const std::byte*>(next);
    auto* to = static_cast<std::byte*>(accumulator);
    for (std::size_t i = 0; i < count; ++i, from += size_of(dtype), to += size_of(dtype)) {
      access.store(test::reference_apply(is_sum ? ReduceOp::Sum : ReduceOp::Max, access.load(to),
                                         access.load(from)),
                   to);
    }
    return 0;
  });
}

template <bool kIsSum>
void fill_identity(DType dtype, void* values, std::size_t count) {
  const bool is_zero = kIsSum || dtype == DType::Bool;
  test::with_access(dtype, [&](auto access) {
    using Limits = std::numeric_limits<typename decltype(access)::Type>;
    const auto lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    auto* to = static_cast<std::byte*>(values);
    for (std::size_t i = 0; i < count; ++i) {
      access.store(is_zero ? typename decltype(access)::Type{0} : lowest, to + i * size_of(dtype));
    }
    return 0;
  });
}

}  // namespace

double input_value(const Operation& operation, std::size_t tensor, int rank, std::size_t index) {
  const DType dtype = operation.tensors[tensor].dtype;
  const auto id = static_cast<std::size_t>(operation.id);
  const std::size_t place = index * 31 + static_cast<std::size_t>(rank) * 17 + id * 7 + tensor * 13;
  const auto mixed = static_cast<double>(place % 97);
  if (dtype == DType::Bool) return place % 97 % 3 == 0 ? 1 : 0;
  if (!is_floating(dtype)) return dtype == DType::UInt8 ? mixed : mixed - 48;
  // Products stay within the range of float16; sums have different bits in every order.
  if (operation.op == ReduceOp::Product) return (mixed < 48 ? -0.75 : 0.75) + mixed / 200;
  return (mixed - 48) / 7 * (place % 5 == 0 ? 100 : 1);
}

std::size_t input_count(const Program& program, const Operation& operation, std::size_t tensor,
                        int rank) {
  const std::size_t row = operation.tensors[tensor].count();
  const std::size_t member = member_of(rank, program.members(operation));
  if (operation.collective == Collective::AllGather) {
    return row * static_cast<std::size_t>(operation.rows[tensor][member]);
  }
  if (operation.collective == Collective::AllToAll) {
    const auto& split = operation.split[member];
    return row *
           static_cast<std::size_t>(std::accumulate(split.begin(), split.end(), std::int64_t{0}));
  }
  return row;
}

std::vector<std::byte> input_of(const Program& program, const Operation& operation,
                                std::size_t tensor, int rank) {
  const DType dtype = operation.tensors[tensor].dtype;
  const std::size_t count = input_count(program, operation, tensor, rank);
  std::vector<std::byte> input(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    test::set_value(dtype, input.data(), i, input_value(operation, tensor, rank, i));
  }
  return input;
}

std::vector<CustomReduction> custom_reductions() {
  return {{"added", combine<true>, fill_identity<true>},
          {"greatest", combine<false>, fill_identity<false>}};
}

ReduceOp as_built_in(const std::string& custom, DType dtype) {
  return custom == "added" && dtype != DType::Bool ? ReduceOp::Sum : ReduceOp::Max;
}

}  // namespace kolo::programs
