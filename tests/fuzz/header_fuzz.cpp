// Builds the headers of one to four ranks from bytes, and exchanges them in every way. Beyond "no
// crash":
//   - headers merge to the same in every order and grouping, and a header merges with itself;
//   - a header survives a message, and a header exchange in shared memory, unchanged;
//   - header exchanges by messages, with any tree, and in shared memory show the merged header.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fuzz/fuzz_target.hpp"
#include "fuzz/plain_window.hpp"
#include "runtime/control/tree_header_exchange.hpp"
#include "runtime/control/window_header_exchange.hpp"
#include "runtime/control/wire.hpp"

namespace kolo::fuzz {
namespace {

using runtime::Bits;
using runtime::Header;
using runtime::HeaderExchangeMessage;
using runtime::HeaderUp;
using runtime::Tree;
using runtime::TreeHeaderExchange;
using runtime::WindowHeaderExchange;
using runtime::WireMessage;

constexpr int kMaxRanks = 4;

Bits take_bits(ByteSource& source) {
  Bits bits;
  if (source.take_bool()) bits.set_word(0, source.take<std::uint64_t>());
  for (int more = source.take_below(8); more > 0; --more) {
    bits.set(source.take<std::uint16_t>() % Header::kMaxBits);
  }
  return bits;
}

Header take_header(ByteSource& source, int rank, std::uint64_t exchange) {
  Header header;
  header.exchange = exchange;
  header.has_unknown = source.take_bool();
  header.has_expired = source.take_bool();
  header.has_stalled = source.take_bool();
  if (source.take_bool()) header.shutdown_rank = rank;
  if (source.take_bool()) header.joined.set(rank);
  header.own = take_bits(source);
  header.ready = take_bits(source);
  return header;
}

Header merge_all(const std::vector<Header>& headers) {
  Header merged = headers.front();
  for (const Header& header : headers) merged.merge(header);  // the first one twice
  return merged;
}

void require_any_order(const std::vector<Header>& headers) {
  const Header expected = merge_all(headers);
  const std::vector<Header> backwards(headers.rbegin(), headers.rend());
  require(merge_all(backwards) == expected, "headers merge to the same in every order");
  const std::size_t middle = headers.size() / 2;
  if (middle == 0) return;
  const auto cut = headers.begin() + static_cast<std::ptrdiff_t>(middle);
  Header grouped = merge_all({headers.begin(), cut});
  grouped.merge(merge_all({cut, headers.end()}));
  require(grouped == expected, "headers merge to the same in every grouping");
}

void require_same_after_a_message(const Header& header) {
  const WireMessage message = HeaderExchangeMessage{HeaderUp{header}};
  require(runtime::decode(runtime::encode(message), kMaxRanks) == message,
          "a header is the same after a message");
}

void exchange_in_shared_memory(const std::vector<Header>& headers) {
  const int size = static_cast<int>(headers.size());
  PlainWindow memory(size, WindowHeaderExchange::segment_bytes());
  std::vector<std::unique_ptr<WindowHeaderExchange>> header_exchanges;
  for (int rank = 0; rank < size; ++rank) {
    header_exchanges.push_back(std::make_unique<WindowHeaderExchange>(memory.window(rank)));
  }
  const std::uint64_t exchange = headers.front().exchange;
  for (std::size_t rank = 0; rank < headers.size(); ++rank) {
    require(!header_exchanges[0]->merged(exchange).has_value(), "no header before all have posted");
    header_exchanges[rank]->post(headers[rank]);
  }
  for (const auto& header_exchange : header_exchanges) {
    require(header_exchange->merged(exchange) == merge_all(headers),
            "shared memory shows merged headers");
  }
}

void exchange_by_messages(const std::vector<Header>& headers, int width) {
  struct Message {
    int from;
    int to;
    HeaderExchangeMessage content;
  };
  const int size = static_cast<int>(headers.size());
  std::deque<Message> under_way;
  std::vector<std::unique_ptr<TreeHeaderExchange>> header_exchanges;
  for (int rank = 0; rank < size; ++rank) {
    header_exchanges.push_back(std::make_unique<TreeHeaderExchange>(
        rank, size, Tree(rank, size, width),
        [&under_way, rank](int to, const HeaderExchangeMessage& what) {
          under_way.push_back({rank, to, what});
          return std::size_t{1};
        }));
  }
  for (std::size_t rank = 0; rank < headers.size(); ++rank)
    header_exchanges[rank]->post(headers[rank]);
  for (; !under_way.empty(); under_way.pop_front()) {
    const Message& next = under_way.front();
    header_exchanges[static_cast<std::size_t>(next.to)]->on_message(next.from, next.content);
  }
  for (const auto& header_exchange : header_exchanges) {
    require(header_exchange->merged(headers.front().exchange) == merge_all(headers),
            "messages show merged headers");
  }
}

}  // namespace

std::vector<std::string> seeds() {
  return {std::string(40, '\1'), "\3" + std::string(120, '\7'),
          std::string("\2\1\0\1\0\1\1\377\377\377\0\0\0\0\0\3\1\0\200\0\377\37", 22)};
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kolo::fuzz;
  ByteSource source(data, size);
  const int ranks = 1 + source.take_below(kMaxRanks);
  const int width = 1 + source.take_below(3);
  std::vector<kolo::runtime::Header> headers;
  for (int rank = 0; rank < ranks; ++rank) headers.push_back(take_header(source, rank, 1));
  require_any_order(headers);
  for (const auto& header : headers) require_same_after_a_message(header);
  require_same_after_a_message(merge_all(headers));
  exchange_in_shared_memory(headers);
  exchange_by_messages(headers, width);
  return 0;
}
