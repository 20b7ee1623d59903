#include "runtime/control/agree_on_start.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/error.hpp"
#include "ops/algorithms.hpp"
#include "runtime/protocol/set_name.hpp"

namespace kolo::runtime {
namespace {

constexpr std::array<std::string_view, 2> kMayDiffer{"KOLO_LOG_LEVEL", "KOLO_MPI_LIBRARY"};
constexpr std::size_t kSegmentBytes = std::size_t{64} << 10;

/// "KOLO_A=1\nKOLO_B=2\n…"
std::string text_of(const Start& start) {
  std::string text;
  for (const ConfigEntry& entry : describe(start.config)) {
    if (std::ranges::find(kMayDiffer, entry.variable) != kMayDiffer.end()) continue;
    text += entry.variable + "=" + entry.value + "\n";
  }
  for (const char* const variable : {"NCCL_ALGO", "NCCL_PROTO"}) {
    const char* const value = std::getenv(variable);
    text.append(variable).append("=").append(value == nullptr ? "" : value).append("\n");
  }
  text += "algorithms";
  for (const Algorithm& algorithm : start.algorithms.algorithms()) {
    text.append(" ").append(name_of(algorithm.collective)).append(":").append(algorithm.name);
  }
  text += "\nreductions";
  for (const CustomReduction& reduction : start.reductions) text.append(" ").append(reduction.name);
  text += "\ncodecs";
  for (const Codec* codec : start.codecs) text.append(" ").append(codec->name());
  text += "\nprocess sets";
  for (const std::vector<int>& ranks : start.process_sets)
    text.append(" ").append(list_of_ranks(ranks));
  text += "\n";
  return text;
}

void require_equal(std::string_view first, std::string_view other, int rank) {
  while (first != other) {
    const std::string_view a = first.substr(0, first.find('\n'));
    const std::string_view b = other.substr(0, other.find('\n'));
    if (a != b) {
      throw InvalidArgument("the configuration differs between ranks: rank 0 has " +
                            std::string(a) + ", rank " + std::to_string(rank) + " has " +
                            std::string(b) +
                            ". Give all ranks the same environment (Open MPI: mpirun -x NAME).");
    }
    first.remove_prefix(a.size() + 1);
    other.remove_prefix(b.size() + 1);
  }
}

}  // namespace

Task gather_bytes(Communicator& communicator, const std::byte* own, std::byte* all,
                  const std::vector<std::size_t>& counts) {
  CollectiveCall call;
  call.communicator = &communicator;
  call.dtype = DType::UInt8;
  call.input = own;
  call.output = all;
  call.counts = counts;
  call.segment_bytes = kSegmentBytes;
  co_await ops::allgather_ring(call);
}

Task agree_on_start(Communicator& communicator, Start start) {
  const std::string own = text_of(start);
  const std::size_t size = static_cast<std::size_t>(communicator.size());

  const std::size_t own_length = own.size();
  std::vector<std::size_t> lengths(size);
  const std::vector<std::size_t> length_bytes(size, sizeof(std::size_t));
  co_await gather_bytes(communicator, reinterpret_cast<const std::byte*>(&own_length),
                        reinterpret_cast<std::byte*>(lengths.data()), length_bytes);

  std::string all(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}), '\0');
  co_await gather_bytes(communicator, reinterpret_cast<const std::byte*>(own.data()),
                        reinterpret_cast<std::byte*>(all.data()), lengths);

  const std::string_view first = std::string_view(all).substr(0, lengths[0]);
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < size; ++rank) {
    require_equal(first, std::string_view(all).substr(begin, lengths[rank]),
                  static_cast<int>(rank));
    begin += lengths[rank];
  }
}

}  // namespace kolo::runtime
