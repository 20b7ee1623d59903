#include "runtime/data/absent_ranks.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"

namespace kolo::runtime {

Task find_absent(const SetContext& set, const Operations& batch, std::vector<Bits>& absent) {
  std::vector<std::size_t> own;
  for (const auto& operation : batch) own.push_back(operation->role == OperationRole::StandIn);
  std::vector<std::size_t> all;
  co_await gather_numbers(set, own, all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != 0) absent[i % own.size()].set(static_cast<int>(i / own.size()));
  }
}

JoinedRanks joined_of(const SetContext& set, const Bits& absent) {
  return {absent.count(), absent.test(set.communicator->rank())};
}

void refuse_for_absent(const SetContext& set, const Request& request, const Bits& absent) {
  const auto refuse = [&](const std::string& why) {
    throw AgreedFailure{{ErrorKind::InvalidArgument,
                         describe(request) + " on process set " + set.name + ": " + why}};
  };
  absent.for_each([&](int rank) {
    const std::string who = set.rank_text(rank);
    if (request.collective == Collective::Broadcast && set.world_rank(rank) == request.root) {
      refuse("the root " + who + " has joined and has nothing to send. Choose one that has not.");
    }
    if (request.is_once_per_node()) {
      refuse(who +
             " has joined, and does not have the memory that its node shares. Call it "
             "outside of join().");
    }
    if (request.collective == Collective::AddProcessSet ||
        request.collective == Collective::RemoveProcessSet) {
      refuse(who + " has joined, and all ranks must take part. Call it outside of join().");
    }
  });
}

Task refuse_rows_for_absent(const SetContext& set, const Request& request,
                            const std::vector<std::size_t>& received, const Bits& absent) {
  std::vector<std::size_t> own{0};  // a rank that sends rows to this one, plus 1; 0: none
  if (absent.test(set.communicator->rank())) {
    const auto some = std::find_if(received.begin(), received.end(), [](auto n) { return n > 0; });
    if (some != received.end()) own[0] = static_cast<std::size_t>(some - received.begin()) + 1;
  }
  std::vector<std::size_t> senders;
  co_await gather_numbers(set, own, senders);
  for (std::size_t rank = 0; rank < senders.size(); ++rank) {
    if (senders[rank] == 0) continue;
    throw AgreedFailure{
        {ErrorKind::InvalidArgument, describe(request) + " on process set " + set.name + ": " +
                                         set.rank_text(static_cast<int>(senders[rank]) - 1) +
                                         " sends rows to " + set.rank_text(static_cast<int>(rank)) +
                                         ", which has joined. Send none to ranks that have."}};
  }
}

std::shared_ptr<Operation> make_stand_in(const SetContext& set, const Request& request,
                                         std::shared_ptr<ScratchMemory> scratch) {
  auto operation = std::make_shared<Operation>();
  operation->role = OperationRole::StandIn;
  operation->request = request;
  Reduction reduction{request.op};
  if (request.op == ReduceOp::Custom) {
    reduction.custom = &set.choices.find_reduction(request.custom);
  }
  const auto count_of = [](const std::vector<std::int64_t>& rows) {
    return static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  };
  const bool is_reduction = request.collective == Collective::AllReduce ||
                            request.collective == Collective::ReduceScatter;
  for (const TensorType& type : request.tensors) {
    TensorMemory& memory = operation->tensors.emplace_back();
    memory.send_splits.assign(set.world_ranks.size(), 0);
    memory.allocate_output = [=, to = scratch.get(), row_bytes = type.size_bytes()](
                                 const std::vector<std::int64_t>& rows) {
      return to->allocate(count_of(rows) * row_bytes);
    };
    if (!request.rows.empty()) {  // others read this rank's rows: zeros
      const std::size_t rows = count_of(request.rows);
      memory.output = scratch->allocate(rows * type.size_bytes());
      scratch->fill_identity(type.dtype, {}, memory.output, rows * type.count());
    }
    if (is_reduction || request.collective == Collective::Broadcast) {
      memory.output = scratch->allocate(type.size_bytes());
    }
    if (is_reduction) {
      std::byte* const input = scratch->allocate(type.size_bytes());
      scratch->fill_identity(type.dtype, reduction, input, type.count());
      memory.input = input;
    }
  }
  operation->keep_alive = std::move(scratch);
  return operation;
}

}  // namespace kolo::runtime
