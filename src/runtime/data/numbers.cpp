#include "runtime/data/numbers.hpp"

#include "kolo/algorithm.hpp"

namespace kolo::runtime {

Task gather_numbers(const DataPath& path, const std::vector<std::size_t>& own,
                    std::vector<std::size_t>& all) {
  static_assert(sizeof(std::size_t) == size_of(DType::Int64));
  const std::size_t size = path.world_ranks.size();
  all.assign(size * own.size(), 0);
  const std::vector<std::size_t> counts(size, own.size());
  CollectiveCall call = path.make_call();
  call.dtype = DType::Int64;
  call.input = reinterpret_cast<const std::byte*>(own.data());
  call.output = reinterpret_cast<std::byte*>(all.data());
  call.counts = counts;
  co_await path.choose(Collective::AllGather, all.size() * sizeof(std::size_t)).run(call);
}

Task broadcast_numbers(const DataPath& path, std::vector<std::uint64_t>& numbers) {
  CollectiveCall call = path.make_call();
  call.dtype = DType::Int64;
  call.output = reinterpret_cast<std::byte*>(numbers.data());
  call.count = numbers.size();
  co_await path.choose(Collective::Broadcast, numbers.size() * sizeof(std::uint64_t)).run(call);
}

Task exchange_numbers(const DataPath& path, const std::vector<std::size_t>& sent,
                      std::vector<std::size_t>& received) {
  const std::size_t size = path.world_ranks.size();
  received.assign(size, 0);
  const std::vector<std::size_t> one_each(size, 1);
  CollectiveCall call = path.make_call();
  call.dtype = DType::Int64;
  call.input = reinterpret_cast<const std::byte*>(sent.data());
  call.output = reinterpret_cast<std::byte*>(received.data());
  call.send_counts = one_each;
  call.receive_counts = one_each;
  co_await path.choose(Collective::AllToAll, sizeof(std::size_t)).run(call);
}

}  // namespace kolo::runtime
