#include "programs/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "contract/reference.hpp"
#include "kolo/collectives.hpp"
#include "ops/adasum_reference.hpp"
#include "programs/values.hpp"

namespace kolo::programs {
namespace {

using Bytes = std::vector<std::byte>;

/// The world ranks whose inputs count, in the order of the set.
std::vector<int> contributors(const Program& program, const Operation& operation) {
  std::vector<int> ranks;
  for (const int rank : program.members(operation)) {
    if (!is_among(rank, operation.joined)) ranks.push_back(rank);
  }
  return ranks;
}

Bytes converted(DType from, const Bytes& values, DType to) {
  const std::size_t count = values.size() / size_of(from);
  Bytes result(count * size_of(to));
  for (std::size_t i = 0; i < count; ++i) {
    test::set_value(to, result.data(), i, test::value_at(from, values.data(), i));
  }
  return result;
}

/// Divided in 64 bits, truncated.
Bytes integer_average(DType dtype, const Operation& operation, std::vector<Bytes> inputs,
                      std::int64_t divisor) {
  for (Bytes& input : inputs) input = converted(dtype, input, DType::Int64);
  Bytes sum = test::reference_combine(
      DType::Int64, {ReduceOp::Sum, operation.prescale, operation.postscale}, inputs);
  for (std::size_t i = 0; i < sum.size() / sizeof(std::int64_t); ++i) {
    std::int64_t value;
    std::memcpy(&value, &sum[i * sizeof(value)], sizeof(value));
    value /= divisor;
    std::memcpy(&sum[i * sizeof(value)], &value, sizeof(value));
  }
  return converted(DType::Int64, sum, dtype);
}

int mantissa_bits(DType dtype) {
  switch (dtype) {
    case DType::BFloat16: return 7;
    case DType::Float16: return 10;
    case DType::Float32: return 23;
    default: return 52;
  }
}

DType wire_of(DType dtype, const std::string& compression) {
  const bool is_compressed = dtype == DType::Float32 || dtype == DType::Float64;
  if (!is_compressed || compression == "none") return dtype;
  return compression == "fp16" ? DType::Float16 : DType::BFloat16;
}

/// Each float's tolerance: one rounding for each rank, each scale and the result, in the type that
/// is sent.
std::vector<double> tolerances(DType dtype, const Operation& operation,
                               const std::vector<Bytes>& inputs, const Reduction& reduction) {
  const DType wire = wire_of(dtype, operation.compression);
  const bool is_choice = reduction.op == ReduceOp::Min || reduction.op == ReduceOp::Max;
  const bool is_scaled = reduction.prescale != 1.0 || reduction.postscale != 1.0;
  if (!is_floating(dtype) || (is_choice && !is_scaled && wire == dtype)) return {};
  const double roundings = static_cast<double>(inputs.size()) + 5;
  const double smallest = wire == DType::Float16 ? 0x1p-24 : 0;
  std::vector<double> tolerance(inputs[0].size() / size_of(dtype));
  for (std::size_t i = 0; i < tolerance.size(); ++i) {
    double magnitude = reduction.op == ReduceOp::Product ? 1 : 0;
    for (const Bytes& input : inputs) {
      const double value = std::fabs(test::value_at(dtype, input.data(), i) * reduction.prescale);
      magnitude = reduction.op == ReduceOp::Product ? magnitude * value : magnitude + value;
    }
    tolerance[i] =
        roundings * std::max(1.0, std::fabs(reduction.postscale)) * smallest +
        roundings * std::ldexp(magnitude * std::fabs(reduction.postscale), -mantissa_bits(wire));
  }
  return tolerance;
}

/// Joined ranks keep their place in the order of pairs, with zeros as input.
Expected adasum(const Program& program, const Operation& operation, std::size_t tensor) {
  Expected expected;
  expected.dtype = operation.tensors[tensor].dtype;
  const DType wire = wire_of(expected.dtype, operation.compression);
  std::vector<std::vector<double>> vectors;
  double magnitude = 0;
  for (const int rank : program.members(operation)) {
    const Bytes input = input_of(program, operation, tensor, rank);
    std::vector<double>& vector = vectors.emplace_back(input.size() / size_of(expected.dtype));
    if (is_among(rank, operation.joined)) continue;
    double largest = 0;
    for (std::size_t i = 0; i < vector.size(); ++i) {
      vector[i] = test::value_at(expected.dtype, input.data(), i) * operation.prescale;
      largest = std::max(largest, std::fabs(vector[i]));
    }
    magnitude += largest;
  }
  const double roundings = 8 * (static_cast<double>(vectors.size()) + 5);
  const std::vector<double> result =
      test::adasum_test::reference_adasum(DType::Float64, std::move(vectors), {});
  expected.bytes.resize(result.size() * size_of(expected.dtype));
  for (std::size_t i = 0; i < result.size(); ++i) {
    test::set_value(expected.dtype, expected.bytes.data(), i, result[i] * operation.postscale);
  }
  expected.tolerance.assign(
      result.size(),
      roundings * std::ldexp(magnitude * std::fabs(operation.postscale), -mantissa_bits(wire)));
  return expected;
}

Expected reduced(const Program& program, const Operation& operation, std::size_t tensor) {
  if (operation.op == ReduceOp::Adasum) return adasum(program, operation, tensor);
  Expected expected;
  expected.dtype = operation.tensors[tensor].dtype;
  std::vector<Bytes> inputs;
  for (const int rank : contributors(program, operation)) {
    inputs.push_back(input_of(program, operation, tensor, rank));
  }
  const std::size_t divisor = operation.join_divisor == JoinDivisor::Active
                                  ? inputs.size()
                                  : program.members(operation).size();
  Reduction reduction{operation.op, operation.prescale, operation.postscale};
  if (operation.op == ReduceOp::Custom) {
    reduction.op = as_built_in(operation.custom, expected.dtype);
  } else if (operation.op == ReduceOp::Average) {
    if (!is_floating(expected.dtype)) {
      expected.bytes =
          integer_average(expected.dtype, operation, inputs, static_cast<std::int64_t>(divisor));
      return expected;
    }
    reduction.op = ReduceOp::Sum;
    reduction.postscale /= static_cast<double>(divisor);
  }
  expected.bytes = test::reference_combine(expected.dtype, reduction, inputs);
  expected.tolerance = tolerances(expected.dtype, operation, inputs, reduction);
  return expected;
}

/// The rows of a reduction that one rank receives.
Expected scattered(const Program& program, const Operation& operation, std::size_t tensor,
                   int rank) {
  Expected expected = reduced(program, operation, tensor);
  const std::vector<std::int64_t>& shape = operation.tensors[tensor].shape;
  const int size = static_cast<int>(program.members(operation).size());
  const int member = static_cast<int>(member_of(rank, program.members(operation)));
  const std::size_t count = operation.tensors[tensor].count();
  const std::size_t row = shape[0] > 0 ? count / static_cast<std::size_t>(shape[0]) : 0;
  std::size_t begin = 0;
  for (int earlier = 0; earlier < member; ++earlier) {
    begin += static_cast<std::size_t>(scattered_rows(shape[0], size, earlier)) * row;
  }
  const std::size_t end =
      begin + static_cast<std::size_t>(scattered_rows(shape[0], size, member)) * row;
  const auto cut = [&](auto& values, std::size_t width) {
    values = {values.begin() + static_cast<std::ptrdiff_t>(begin * width),
              values.begin() + static_cast<std::ptrdiff_t>(end * width)};
  };
  cut(expected.bytes, size_of(expected.dtype));
  if (!expected.tolerance.empty()) cut(expected.tolerance, 1);
  return expected;
}

void append(Expected& expected, const Bytes& input, std::size_t begin, std::size_t rows,
            std::size_t row_bytes) {
  const auto first = input.begin() + static_cast<std::ptrdiff_t>(begin * row_bytes);
  expected.bytes.insert(expected.bytes.end(), first,
                        first + static_cast<std::ptrdiff_t>(rows * row_bytes));
  expected.rows.push_back(static_cast<std::int64_t>(rows));
}

/// Each member's rows for `rank`, concatenated.
Expected gathered(const Program& program, const Operation& operation, std::size_t tensor,
                  int rank) {
  Expected expected;
  expected.dtype = operation.tensors[tensor].dtype;
  const std::vector<int>& members = program.members(operation);
  const std::size_t row_bytes = operation.tensors[tensor].count() * size_of(expected.dtype);
  const std::size_t own = member_of(rank, members);
  for (std::size_t from = 0; from < members.size(); ++from) {
    if (is_among(members[from], operation.joined)) {
      expected.rows.push_back(0);
      continue;
    }
    const Bytes input = input_of(program, operation, tensor, members[from]);
    if (operation.collective == Collective::AllGather) {
      append(expected, input, 0, static_cast<std::size_t>(operation.rows[tensor][from]), row_bytes);
      continue;
    }
    const std::vector<std::int64_t>& split = operation.split[from];
    std::size_t begin = 0;
    for (std::size_t to = 0; to < own; ++to) begin += static_cast<std::size_t>(split[to]);
    append(expected, input, begin, static_cast<std::size_t>(split[own]), row_bytes);
  }
  return expected;
}

}  // namespace

Expected expected_of(const Program& program, const Operation& operation, std::size_t tensor,
                     int rank) {
  switch (operation.collective) {
    case Collective::AllReduce: return reduced(program, operation, tensor);
    case Collective::ReduceScatter: return scattered(program, operation, tensor, rank);
    case Collective::Broadcast:
      return {operation.tensors[tensor].dtype,
              input_of(program, operation, tensor, operation.root),
              {},
              {}};
    default: return gathered(program, operation, tensor, rank);
  }
}

std::string difference(const Expected& expected, const std::vector<std::byte>& result) {
  const std::size_t count = expected.bytes.size() / size_of(expected.dtype);
  if (result.size() != expected.bytes.size()) {
    return std::to_string(result.size()) + " bytes instead of " +
           std::to_string(expected.bytes.size());
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double wanted = test::value_at(expected.dtype, expected.bytes.data(), i);
    const double got = test::value_at(expected.dtype, result.data(), i);
    const double tolerance = expected.tolerance.empty() ? 0 : expected.tolerance[i];
    const std::size_t place = i * size_of(expected.dtype);
    if (!is_floating(expected.dtype)) {
      if (std::memcmp(&expected.bytes[place], &result[place], size_of(expected.dtype)) == 0)
        continue;
    } else if (std::fabs(got - wanted) <= tolerance) {
      continue;
    }
    std::ostringstream text;
    text.precision(17);
    text << "element " << i << " of " << count << ": expected " << wanted;
    if (tolerance > 0) text << " within " << tolerance;
    text << ", got " << got;
    return text.str();
  }
  return {};
}

}  // namespace kolo::programs
