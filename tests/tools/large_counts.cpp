// Runs every collective on more elements than 31 bits can count, and checks every element:
//
//   mpirun -np 2 large_counts
//
// Needs about 4.5 GB of memory a rank. Exit code 1 where an element is wrong.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace {

constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 5;

using Bytes = std::vector<std::uint8_t>;

/// The element of `rank` at place i; the values do not repeat at any power of two.
std::uint8_t value_of(int rank, std::int64_t i) {
  return static_cast<std::uint8_t>((i % 97 + 3 * rank) % 101);
}

Bytes input_of(int rank, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) bytes[static_cast<std::size_t>(i)] = value_of(rank, i);
  return bytes;
}

kolo::TensorView view_of(Bytes& bytes) {
  return {bytes.data(), kolo::DType::UInt8, {static_cast<std::int64_t>(bytes.size())}, {}};
}

kolo::AllocateRows rows_of(Bytes& bytes) {
  return [&bytes](const std::vector<std::int64_t>& rows) -> void* {
    std::int64_t count = 0;
    for (const std::int64_t of_rank : rows) count += of_rank;
    bytes.resize(static_cast<std::size_t>(count));
    return bytes.data();
  };
}

/// Prints the first wrong element, if any.
bool check(const std::string& what, const Bytes& bytes, std::int64_t count,
           const std::function<std::uint8_t(std::int64_t)>& expected) {
  if (static_cast<std::int64_t>(bytes.size()) != count) {
    std::printf("rank %d: %s: %zu elements instead of %lld\n", kolo::rank(), what.c_str(),
                bytes.size(), static_cast<long long>(count));
    return false;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint8_t found = bytes[static_cast<std::size_t>(i)];
    if (found == expected(i)) continue;
    std::printf("rank %d: %s: element %lld is %d instead of %d\n", kolo::rank(), what.c_str(),
                static_cast<long long>(i), found, expected(i));
    return false;
  }
  if (kolo::rank() == 0) std::printf("%s: right\n", what.c_str());
  return true;
}

std::uint8_t sum_at(std::int64_t i) {
  int sum = 0;
  for (int rank = 0; rank < kolo::size(); ++rank) sum += value_of(rank, i);
  return static_cast<std::uint8_t>(sum);
}

bool check_all_reduce() {
  Bytes bytes = input_of(kolo::rank(), kCount);
  kolo::allreduce(view_of(bytes), view_of(bytes), {.op = kolo::ReduceOp::Sum});
  return check("allreduce", bytes, kCount, sum_at);
}

bool check_reduce_scatter() {
  Bytes input = input_of(kolo::rank(), kCount);
  std::int64_t begin = 0;
  for (int rank = 0; rank < kolo::rank(); ++rank) {
    begin += kolo::scattered_rows(kCount, kolo::size(), rank);
  }
  Bytes output(static_cast<std::size_t>(kolo::scattered_rows(kCount, kolo::size(), kolo::rank())));
  kolo::reduce_scatter(view_of(input), view_of(output), {.op = kolo::ReduceOp::Sum});
  return check("reduce_scatter", output, static_cast<std::int64_t>(output.size()),
               [&](std::int64_t i) { return sum_at(begin + i); });
}

bool check_all_gather() {
  const std::int64_t own = kCount / kolo::size() + 1;
  Bytes input = input_of(kolo::rank(), own);
  Bytes output;
  kolo::allgather(view_of(input), rows_of(output));
  return check("allgather", output, own * kolo::size(),
               [&](std::int64_t i) { return value_of(static_cast<int>(i / own), i % own); });
}

bool check_broadcast() {
  const int root = kolo::size() - 1;
  Bytes bytes =
      kolo::rank() == root ? input_of(root, kCount) : Bytes(static_cast<std::size_t>(kCount));
  kolo::broadcast(view_of(bytes), root);
  return check("broadcast", bytes, kCount, [&](std::int64_t i) { return value_of(root, i); });
}

bool check_all_to_all() {
  const std::int64_t each = kCount / kolo::size() + 1;
  Bytes input = input_of(kolo::rank(), each * kolo::size());
  Bytes output;
  kolo::alltoall(view_of(input), {}, rows_of(output));
  return check("alltoall", output, each * kolo::size(), [&](std::int64_t i) {
    return value_of(static_cast<int>(i / each), kolo::rank() * each + i % each);
  });
}

}  // namespace

int main() {
  kolo::Runtime runtime;
  bool is_right = check_all_reduce();
  is_right &= check_reduce_scatter();
  is_right &= check_all_gather();
  is_right &= check_broadcast();
  is_right &= check_all_to_all();
  return is_right ? 0 : 1;
}
