#include "runtime/data/absent_ranks.hpp"

#include <algorithm>
#include <string>

#include "runtime/data/numbers.hpp"
#include "runtime/protocol/agreed_failure.hpp"

namespace kolo::runtime {

Task find_absent(const DataPath& path, const std::vector<std::shared_ptr<Operation>>& operations,
                 std::vector<Bits>& absent) {
  std::vector<std::size_t> own;
  for (const auto& operation : operations) own.push_back(operation->use ? 0 : 1);
  std::vector<std::size_t> all;
  co_await gather_numbers(path, own, all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != 0) absent[i % own.size()].set(static_cast<int>(i / own.size()));
  }
}

JoinedRanks joined_of(const DataPath& path, const Bits& absent) {
  return {absent.count(), absent.test(path.communicator->rank())};
}

void refuse_for_absent(const DataPath& path, const Request& request, const Bits& absent) {
  const auto refuse = [&](const std::string& why) {
    throw AgreedFailure{{ErrorKind::InvalidArgument,
                         describe(request) + " on process set " + path.name + ": " + why}};
  };
  absent.for_each([&](int rank) {
    const std::string who =
        "rank " + std::to_string(path.world_rank(static_cast<std::size_t>(rank)));
    if (request.collective == Collective::Broadcast &&
        path.world_rank(static_cast<std::size_t>(rank)) == request.root) {
      refuse("the root " + who + " has joined and has nothing to send. Choose one that has not.");
    }
    if (request.collective == Collective::AddProcessSet ||
        request.collective == Collective::RemoveProcessSet) {
      refuse(who + " has joined, and all ranks must take part. Call it outside of join().");
    }
  });
}

Task refuse_rows_for_absent(const DataPath& path, const Request& request,
                            const std::vector<std::size_t>& received, const Bits& absent) {
  std::vector<std::size_t> own{0};  // a rank that sends some to this one, counted from 1
  if (absent.test(path.communicator->rank())) {
    const auto some = std::find_if(received.begin(), received.end(), [](auto n) { return n > 0; });
    if (some != received.end()) own[0] = static_cast<std::size_t>(some - received.begin()) + 1;
  }
  std::vector<std::size_t> senders;
  co_await gather_numbers(path, own, senders);
  for (std::size_t rank = 0; rank < senders.size(); ++rank) {
    if (senders[rank] == 0) continue;
    throw AgreedFailure{{ErrorKind::InvalidArgument,
                         describe(request) + " on process set " + path.name + ": rank " +
                             std::to_string(path.world_rank(senders[rank] - 1)) +
                             " sends rows to rank " + std::to_string(path.world_rank(rank)) +
                             ", which has joined. Send none to ranks that have."}};
  }
}

}  // namespace kolo::runtime
