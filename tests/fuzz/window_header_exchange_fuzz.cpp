// Another rank's cell of a header exchange in shared memory holds arbitrary bytes. Beyond "no
// crash":
//   - bytes that cannot be a header are rejected with BackendError;
//   - a header that is returned has no bits or text beyond the cell's capacity.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/fuzz_target.hpp"
#include "fuzz/plain_window.hpp"
#include "kolo/error.hpp"
#include "runtime/control/window_header_exchange.hpp"

namespace kolo::fuzz {
namespace {

using runtime::Bits;
using runtime::Header;
using runtime::WindowHeaderExchange;

Header header_of(std::uint64_t exchange) {
  Header header;
  header.exchange = exchange;
  header.own.set(3);
  header.own.set(300);
  header.ready.set(3);
  return header;
}

void require_fits(const Header& header) {
  for (const Bits* bits : {&header.own, &header.ready}) {
    require(bits->word_count() <= Header::kMaxBits / 64, "no more bits than a header can show");
  }
  require(header.own.test(3) && header.own.test(300), "all that this rank has is shown");
  require(header.shutdown_rank.value_or(0) < 2, "only ranks of the set shut down");
}

void read_all(WindowHeaderExchange& header_exchange) {
  for (const std::uint64_t exchange : {std::uint64_t{1}, std::uint64_t{2}}) {
    header_exchange.post(header_of(exchange));
    try {
      const std::optional<Header> merged = header_exchange.merged(exchange);
      if (merged) require_fits(*merged);
    } catch (const BackendError&) {
    }
  }
  try {
    const auto lost = header_exchange.lost();
    if (lost) {
      require(lost->rank >= 0 && lost->rank < 2, "only ranks of the set are lost");
      require(lost->how.size() < 1000, "a loss has a text that ends");
    }
  } catch (const BackendError&) {
  }
  header_exchange.highest_wake_up_request();
  static_cast<void>(header_exchange.has_left(1));
  static_cast<void>(header_exchange.silent_ranks());
}

}  // namespace

/// The cell of a rank that has used all features.
std::vector<std::string> seeds() {
  PlainWindow memory(2, WindowHeaderExchange::segment_bytes());
  WindowHeaderExchange header_exchange(memory.window(1));
  header_exchange.post(header_of(1));
  Header last = header_of(2);
  last.has_unknown = last.has_expired = last.has_stalled = true;
  last.shutdown_rank = 1;
  last.joined.set(1);
  header_exchange.post(last);
  header_exchange.request_wake_up(2);
  header_exchange.beat();
  header_exchange.publish_lost({0, "died: its process has ended"});
  header_exchange.leave();
  const auto bytes = memory.segment(1);
  return {std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kolo::fuzz;
  PlainWindow memory(2, kolo::runtime::WindowHeaderExchange::segment_bytes());
  const auto cell = memory.segment(1);
  if (size > 0) std::memcpy(cell.data(), data, std::min(size, cell.size()));
  kolo::runtime::WindowHeaderExchange header_exchange(memory.window(0));
  read_all(header_exchange);
  return 0;
}
