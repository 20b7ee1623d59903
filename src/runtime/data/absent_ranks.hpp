#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/protocol/bits.hpp"

/// Ranks that have joined, and what runs without them.
namespace kolo::runtime {

/// For each operation, the ranks that have joined without having submitted it. Only they know: what
/// a rank submitted before it joined counts in full, whenever it runs.
Task find_absent(const DataPath& path, const std::vector<std::shared_ptr<Operation>>& operations,
                 std::vector<Bits>& absent);

/// Those of one operation, as reductions see them.
JoinedRanks joined_of(const DataPath& path, const Bits& absent);

/// All-reduces `operations` on a Reducer or DeviceReducer: those to which the same ranks contribute
/// share runs.
template <class AnyReducer>
Task all_reduce_together(const DataPath& path, AnyReducer& reducer,
                         const std::vector<std::shared_ptr<Operation>>& operations,
                         const std::vector<Bits>& absent) {
  std::size_t end = 0;
  for (std::size_t begin = 0; begin < operations.size(); begin = end) {
    std::vector<ReductionItem> items;
    for (end = begin; end < operations.size() && absent[end] == absent[begin]; ++end) {
      Operation& operation = *operations[end];
      for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
        items.push_back({&operation.request.tensors[i], &operation.tensors[i]});
      }
    }
    const JoinedRanks joined = joined_of(path, absent[begin]);
    co_await reducer.all_reduce(operations[begin]->request, items, joined);
  }
}

/// What makes no sense without some ranks ends in an AgreedFailure on the others.
void refuse_for_absent(const DataPath& path, const Request& request, const Bits& absent);

/// A rank that has joined waits for nothing: rows for it would be lost. All ranks learn of them.
Task refuse_rows_for_absent(const DataPath& path, const Request& request,
                            const std::vector<std::size_t>& received, const Bits& absent);

}  // namespace kolo::runtime
