#include "torch/optimizer/count_rows.hpp"

#include <algorithm>
#include <cstddef>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

constexpr std::int64_t kColumns = sizeof(CountRow) / sizeof(std::int64_t);

std::string text_of_problem(const CountRow& row) {
  const std::string count = "the count " + std::to_string(row.wrong_count);
  if (row.problem == CountProblem::NegativeCount) return count + ", which must be 0 or more.";
  if (row.problem == CountProblem::UndefinedLoss) {
    return "an undefined loss_sum with " + count + ". A rank without samples passes the count 0.";
  }
  return "with " + count +
         " a loss_sum without a graph. Compute it from the model's parameters, with gradients "
         "enabled.";
}

}  // namespace

CountRows::CountRows(const CountRow& own, ProcessSet& set)
    : set_(set),
      rows_(std::make_shared<std::vector<CountRow>>(static_cast<std::size_t>(set.size()))) {
  (*rows_)[static_cast<std::size_t>(set.rank())] = own;
}

CountRows::CountRows(const CountRow& own, ProcessSet& set, const std::string& name)
    : CountRows(own, set) {
  const TensorView view{rows_->data(), DType::Int64, {set.size(), kColumns}, Device{}};
  handle_ = allreduce_async(
      view, view, {.op = ReduceOp::Sum, .name = name, .process_set = &set, .keep_alive = rows_});
}

std::int64_t CountRows::total() const {
  std::int64_t total = 0;
  for (const CountRow& row : *rows_) total += row.count;
  return total;
}

int CountRows::active_ranks() const {
  return static_cast<int>(
      std::ranges::count_if(*rows_, [](const CountRow& row) { return row.is_active != 0; }));
}

std::string CountRows::ranks_with(std::int64_t CountRow::* column) const {
  std::string ranks;
  for (std::size_t i = 0; i < rows_->size(); ++i) {
    if ((*rows_)[i].*column == 0) continue;
    ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(set_.ranks()[i]);
  }
  return ranks;
}

void CountRows::require_consistent() const {
  for (std::size_t i = 0; i < rows_->size(); ++i) {
    if ((*rows_)[i].problem == CountProblem::None) continue;
    throw InvalidArgument("DistributedOptimizer: backward(loss_sum, count) on rank " +
                          std::to_string(set_.ranks()[i]) + " got " + text_of_problem((*rows_)[i]));
  }
  const std::string uncounted = ranks_with(&CountRow::has_uncounted);
  if (uncounted.empty()) return;
  throw InvalidArgument("DistributedOptimizer: in one step, backward(loss_sum, count) ran on " +
                        ranks_with(&CountRow::has_counted) +
                        ", and a backward() without count on " + uncounted +
                        ". Use one of them for all passes of a step, on all ranks; drop the "
                        "gradients of other passes "
                        "by zero_grad() first.");
}

}  // namespace kolo::tensors
