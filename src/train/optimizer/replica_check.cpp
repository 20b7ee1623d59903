#include "train/optimizer/replica_check.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checksums.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"

namespace kolo::train {
namespace {

using Digests = std::vector<std::int64_t>;

constexpr std::size_t kNamed = 3;  // parameters that an error text names

std::int64_t digest_of(const void* data, std::size_t bytes) {
  return std::bit_cast<std::int64_t>(checkpoints::checksum_of(data, bytes));
}

std::int64_t digest_of(const at::Tensor& parameter) {
  const at::Tensor elements = parameter.detach().cpu().contiguous();
  return digest_of(elements.const_data_ptr(), elements.nbytes());
}

std::string list_of(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) list.append(1, ' ').append(std::to_string(rank));
  return list;
}

/// The rows of all ranks. Each rank fills its own row of a sum, which is exact: the others add
/// zeros. A joined rank adds only zeros, which mean that it has no digests: its row is empty.
std::vector<Digests> gather_digests(const TrainingContext& context, const Digests& own,
                                    const std::string& what) {
  const auto ranks = static_cast<std::size_t>(context.set.size());
  const std::size_t columns = own.size() + 1;
  Digests sum(ranks * columns);
  const auto row_of = [&](std::size_t rank) {
    return sum.begin() + static_cast<std::ptrdiff_t>(rank * columns);
  };
  const auto row = row_of(static_cast<std::size_t>(context.set.rank()));
  *row = 1;
  std::ranges::copy(own, row + 1);
  const TensorView view{
      sum.data(), DType::Int64, {context.set.size(), static_cast<std::int64_t>(columns)}, Device{}};
  ProcessSet* const set = &context.set;
  allreduce(view, view,
            {.op = ReduceOp::Sum, .name = context.prefix + "." + what, .process_set = set});
  std::vector<Digests> rows;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = row_of(rank);
    const auto end = begin + (*begin == 0 ? 1 : static_cast<std::ptrdiff_t>(columns));
    rows.emplace_back(begin + 1, end);
  }
  return rows;
}

/// Called on all active ranks: if two digests differ, each rank sees one that differs from its own.
[[noreturn]] void throw_difference(const TrainingContext& context,
                                   const std::vector<ReducedParameter>& parameters,
                                   const Digests& digests) {
  const std::vector<Digests> rows = gather_digests(context, digests, "replicas of each parameter");
  std::string text;
  std::size_t differing = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::map<std::int64_t, std::vector<int>> ranks;  // by digest
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      if (!rows[rank].empty()) ranks[rows[rank][i]].push_back(context.set.ranks()[rank]);
    }
    if (ranks.size() < 2 || ++differing > kNamed) continue;
    std::vector<std::vector<int>> groups;
    for (const auto& [digest, group] : ranks) groups.push_back(group);
    std::ranges::sort(groups);
    text += (text.empty() ? "'" : ", '") + parameters[i].name + "' (";
    for (std::size_t group = 0; group < groups.size(); ++group) {
      text += (group > 0 ? "; " : "") + list_of(groups[group]);
    }
    text += ")";
  }
  throw MismatchError(
      "DistributedOptimizer: after step " + std::to_string(context.steps) + ", " +
      std::to_string(differing) + " of " + std::to_string(parameters.size()) +
      " parameters differ between ranks: " + text + (differing > kNamed ? " and others" : "") +
      "; ranks in one list have equal values. Call broadcast_parameters(model, 0) before the first "
      "step; later, nothing but step() and load() may write to parameters, or all ranks alike.");
}

}  // namespace

void compare_replicas(const TrainingContext& context, const GradientReducers& reducers) {
  if (context.options.shard == Shard::Full) return;
  const std::vector<ReducedParameter> parameters = reducers.all_parameters();
  Digests digests;
  for (const ReducedParameter& parameter : parameters) {
    digests.push_back(digest_of(parameter.tensor));
  }
  const std::int64_t all = digest_of(digests.data(), digests.size() * sizeof(std::int64_t));
  const std::vector<Digests> rows = gather_digests(context, {all}, "replicas");
  const auto differs = [&](const Digests& row) { return !row.empty() && row.front() != all; };
  if (std::ranges::any_of(rows, differs)) throw_difference(context, parameters, digests);
}

}  // namespace kolo::train
