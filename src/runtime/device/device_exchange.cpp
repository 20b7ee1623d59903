#include "runtime/device/device_exchange.hpp"

#include <algorithm>

#include "comm/gpu/scalar.hpp"

namespace kolo::runtime {
namespace {

// Keeps the pieces of aligned memory aligned.
constexpr std::size_t kPieceBytes = 256;

std::vector<std::size_t> lengths_of(const std::vector<ops::Range>& pieces) {
  std::vector<std::size_t> lengths;
  for (const ops::Range& piece : pieces) lengths.push_back(piece.length);
  return lengths;
}

/// Calls `work(i, range)` for each item i that has elements in `own`, a range of all items'
/// elements one after another.
template <class Work>
void for_each_part(std::span<const ReductionItem> items, ops::Range own, Work work) {
  std::size_t item_begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t item_end = item_begin + items[i].type->count();
    const std::size_t begin = std::max(item_begin, own.begin);
    const std::size_t end = std::min(item_end, own.begin + own.length);
    if (begin < end) work(i, ops::Range{begin, end - begin});
    item_begin = item_end;
  }
}

double* numbers(std::byte* memory) { return reinterpret_cast<double*>(memory); }

}  // namespace

Task DeviceExchange::all_reduce(const DevicePlan& plan, std::span<const ReductionItem> items) {
  const DType dtype = items.front().type->dtype;
  const bool is_adasum = plan.reduction.op == ReduceOp::Adasum;
  const std::size_t element = size_of(plan.wire);
  const std::size_t count = count_of(items);
  const std::vector<ops::Range> pieces =
      ops::pieces_of(count, path_.communicator.size(), kPieceBytes / element);
  const std::vector<std::size_t> counts = lengths_of(pieces);
  const ops::Range own = pieces[rank()];
  const std::size_t matrix = is_adasum ? size() * size() * sizeof(double) : 0;
  const std::size_t parts = comm::dot_product_parts(path_.communicator.size());
  const auto [received, packed, matrices, weights, partial] = path_.staging.take<5>(
      {own.length * size() * element, plan.is_staged ? count * element : 0, items.size() * matrix,
       items.size() * matrix / size(), parts * matrix});

  const std::byte* input = items.front().memory->input;
  std::byte* output = items.front().memory->output;
  if (plan.is_staged) {
    pack(path_, items, {dtype, plan.wire}, packed);
    input = output = packed;
  }
  co_await contribute(input, counts, plan.wire, received);
  std::byte* const result = output + own.begin * element;
  const Piece piece{received, result, own};
  if (is_adasum) {
    co_await combine_adasum(plan, items, piece, {matrices, weights, partial});
  } else {
    add_up(plan, piece, own, nullptr);
  }
  path_.traffic.add_round(count * element);
  path_.communicator.all_gather(result, output, counts, plan.wire, path_.stream);
  co_await path_.communicator;
  if (plan.is_staged) unpack(path_, packed, {plan.wire, dtype}, items);
}

Task DeviceExchange::reduce_scatter(const DevicePlan& plan, ReductionItem item,
                                    std::span<const std::size_t> counts) {
  const auto [type, memory] = item;
  const std::size_t element = size_of(plan.wire);
  const ops::Range own = ops::ranges_of(counts)[rank()];
  const auto [received, packed, scattered] = path_.staging.take<3>(
      {own.length * size() * element, plan.is_staged ? type->count() * element : 0,
       plan.is_staged ? own.length * element : 0});
  const std::byte* input = memory->input;
  std::byte* result = memory->output;
  if (plan.is_staged) {
    pack(path_, {&item, 1}, {type->dtype, plan.wire}, packed);
    input = packed;
    result = scattered;
  }
  co_await contribute(input, counts, plan.wire, received);
  add_up(plan, {received, result, own}, own, nullptr);
  if (!plan.is_staged) co_return;
  const comm::DeviceRun out{scattered, memory->output, own.length};
  path_.gpu.convert({&out, 1}, {plan.wire, type->dtype}, path_.stream);
}

/// Step 1.
Task DeviceExchange::contribute(const std::byte* from, std::span<const std::size_t> counts,
                                DType wire, std::byte* received) {
  path_.traffic.add_round(sum_of(counts) * size_of(wire));
  const std::vector<std::size_t> lengths(size(), counts[rank()]);
  path_.communicator.all_to_all(from, counts, received, lengths, wire, path_.stream);
  co_await path_.communicator;
}

/// Step 2 of Adasum.
Task DeviceExchange::combine_adasum(const DevicePlan& plan, std::span<const ReductionItem> items,
                                    Piece piece, Products products) {
  const std::size_t matrix = size() * size();
  const std::size_t elements = items.size() * matrix;
  double* const matrices = numbers(products.matrices);
  double* const weights = numbers(products.weights);
  path_.gpu.fill(products.matrices, elements, DType::Float64, comm::Scalar{}, path_.stream);
  for_each_part(items, piece.own, [&](std::size_t i, ops::Range range) {
    path_.gpu.multiply_all(vectors_of(plan, piece, range), matrices + i * matrix,
                           numbers(products.partial), path_.stream);
  });
  path_.traffic.add_round(2 * elements * sizeof(double));
  path_.communicator.all_reduce(matrices, matrices, elements, DType::Float64, {}, path_.stream);
  co_await path_.communicator;
  path_.gpu.weigh_adasum(matrices, static_cast<int>(items.size()), path_.communicator.size(),
                         weights, path_.stream);
  for_each_part(items, piece.own, [&](std::size_t i, ops::Range range) {
    add_up(plan, piece, range, weights + i * size());
  });
}

comm::DeviceVectors DeviceExchange::vectors_of(const DevicePlan& plan, Piece piece,
                                               ops::Range range) const {
  return {piece.received + (range.begin - piece.own.begin) * size_of(plan.wire), plan.wire,
          range.length, piece.own.length, path_.communicator.size()};
}

void DeviceExchange::add_up(const DevicePlan& plan, Piece piece, ops::Range range,
                            const double* weights) {
  const std::size_t offset = (range.begin - piece.own.begin) * size_of(plan.wire);
  path_.gpu.add_up(vectors_of(plan, piece, range), {plan.before, weights, plan.after},
                   piece.result + offset, path_.stream);
}

}  // namespace kolo::runtime
