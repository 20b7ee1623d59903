#include "torch/buckets/arrival_order.hpp"

#include <array>
#include <cstdint>
#include <numeric>

#include "kolo/collectives.hpp"

namespace kolo::tensors {

void ArrivalOrder::record(std::size_t parameter, bool is_sparse) {
  order_.push_back(parameter);
  if (is_sparse) was_sparse_[parameter] = true;
}

ArrivalOrder::Agreed ArrivalOrder::agree(ProcessSet& set, const std::string& name) const {
  const std::size_t parameters = was_sparse_.size();
  // A row is a parameter and whether it was sparse; joined ranks send none.
  using Row = std::array<std::int64_t, 2>;
  std::vector<Row> own;
  for (const std::size_t i : completed(order_, parameters)) {
    own.push_back({static_cast<std::int64_t>(i), was_sparse_[i]});
  }
  std::vector<Row> all;
  allgather({own.data(), DType::Int64, {static_cast<std::int64_t>(own.size()), 2}, Device{}},
            [&](const std::vector<std::int64_t>& rows) -> void* {
              all.resize(static_cast<std::size_t>(
                  std::accumulate(rows.begin(), rows.end(), std::int64_t{0})));
              return all.data();
            },
            {.name = name, .process_set = &set});
  Agreed agreed{.order = {}, .sparse = std::vector<bool>(parameters)};
  for (const auto& [index, was_sparse] : all) {
    const auto i = static_cast<std::size_t>(index);
    if (agreed.order.size() < parameters) agreed.order.push_back(i);
    if (was_sparse != 0) agreed.sparse[i] = true;
  }
  return agreed;
}

std::vector<std::size_t> ArrivalOrder::completed(std::vector<std::size_t> order,
                                                 std::size_t parameters) {
  // Backward reaches the last layers first.
  for (std::size_t i = parameters; i-- > 0;) order.push_back(i);
  std::vector<std::size_t> each_once;
  std::vector<bool> is_in(parameters);
  for (const std::size_t i : order) {
    if (!is_in[i]) each_once.push_back(i);
    is_in[i] = true;
  }
  return each_once;
}

}  // namespace kolo::tensors
