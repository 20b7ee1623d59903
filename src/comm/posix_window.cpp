#include "comm/posix_window.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/outgoing.hpp"
#include "comm/shared_segment.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

// The counter and the key have a page of their own, so that the memory behind it starts on one.
constexpr std::size_t kPageBytes = 4096;

/// What ranks tell one another: where a segment is, or why there is none.
struct Notice {
  SegmentAddress segment;
  std::array<char, 240> failure{};  // empty: success

  void fail(const std::string& text) { text.copy(failure.data(), failure.size() - 1); }
  bool has_failed() const { return failure[0] != '\0'; }
};

/// Runs `step` and notes its failure, which is every rank's.
template <class Step>
void attempt(Notice& own, Step step) {
  try {
    step();
  } catch (const BackendError& error) {
    own.fail(error.what());
  }
}

std::vector<Mapping> map_all(const std::vector<Notice>& all, int rank) {
  std::vector<Mapping> mappings;
  for (std::size_t i = 0; i < all.size(); ++i) {
    mappings.push_back(open_segment(all[i].segment));
    // A rank's dump has what that rank made: n dumps are not n times everybody's memory.
    if (i != static_cast<std::size_t>(rank)) mappings.back().leave_out_of_core_dumps();
  }
  return mappings;
}

/// Every rank's notice, in the order of ranks.
Task exchange(Communicator& communicator, int tag, const Notice& own, std::vector<Notice>& all) {
  all.assign(static_cast<std::size_t>(communicator.size()), Notice{});
  Outgoing<Notice> outgoing(own);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    transfers.push_back(communicator.receive(
        std::as_writable_bytes(std::span(&all[static_cast<std::size_t>(peer)], 1)), peer, tag));
    transfers.push_back(communicator.send(outgoing.bytes(), peer, tag));
  }
  for (Transfer& transfer : transfers) co_await transfer;
  outgoing.set_left();
}

std::shared_ptr<SharedWindow> make_window(int rank, std::size_t segment_bytes,
                                          std::vector<Mapping> mappings) {
  std::vector<SharedWindow::Segment> segments;
  for (const Mapping& mapping : mappings) {
    segments.push_back({reinterpret_cast<SharedWindow::StageCounter*>(mapping.data()),
                        {mapping.data() + kPageBytes, segment_bytes}});
  }
  return std::make_shared<SharedWindow>(
      rank, std::move(segments), std::make_shared<const std::vector<Mapping>>(std::move(mappings)));
}

/// Throws on every rank where any has failed, with the first one's text.
void require_success(const std::vector<Notice>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].has_failed()) {
      throw BackendError("shared memory on rank " + std::to_string(rank) +
                         " of the set: " + std::string(all[rank].failure.data()));
    }
  }
}

}  // namespace

Task make_posix_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                       std::shared_ptr<SharedWindow>& window) {
  const std::size_t size_bytes =
      kPageBytes + (segment_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  Notice own;
  NewSegment segment;
  attempt(own, [&] {
    if (size_bytes < segment_bytes) throw BackendError("more bytes than there are addresses");
    segment = make_segment(size_bytes);
    own.segment = segment.address;
  });

  std::vector<Notice> all;
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  std::vector<Mapping> mappings;
  attempt(own, [&] { map_all(all, communicator.rank()).swap(mappings); });

  // Only when all have mapped it may a rank close its descriptor, or believe in its success.
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  window = make_window(communicator.rank(), segment_bytes, std::move(mappings));
}

}  // namespace kolo::comm
