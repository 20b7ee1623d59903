#include "comm/posix_window.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/sysinfo.h>
#include <utility>
#include <vector>

#include "base/outgoing.hpp"
#include "comm/shared_segment.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// The address of a rank's segment, or the reason why there is none.
struct Notice {
  SegmentAddress segment;
  std::array<char, 240> failure{};  // empty: success

  void fail(const std::string& text) { text.copy(failure.data(), failure.size() - 1); }
  bool has_failed() const { return failure[0] != '\0'; }
};

/// Runs `step` and records its failure, which becomes the error of every rank.
template <class Step>
void attempt(Notice& own, Step step) {
  try {
    step();
  } catch (const BackendError& error) {
    own.fail(error.what());
  }
}

/// Call it before reserving memory: the kernel would kill processes rather than refuse the last
/// pages.
void require_memory(std::size_t size_bytes, int ranks) {
  struct sysinfo machine{};
  if (::sysinfo(&machine) != 0) return;
  const std::uint64_t total =
      (std::uint64_t{machine.totalram} + machine.totalswap) * machine.mem_unit;
  if (size_bytes <= total / static_cast<std::uint64_t>(ranks)) return;
  throw BackendError(std::to_string(size_bytes) + " bytes of shared memory for each of " +
                     std::to_string(ranks) + " ranks exceed this machine's " +
                     std::to_string(total) + " bytes");
}

std::vector<Mapping> map_all(const std::vector<Notice>& all, int rank) {
  std::vector<Mapping> mappings;
  for (std::size_t i = 0; i < all.size(); ++i) {
    mappings.push_back(open_segment(all[i].segment));
    // A rank's core dump holds only its own segment; otherwise n dumps would hold n copies of each.
    if (i != static_cast<std::size_t>(rank)) mappings.back().leave_out_of_core_dumps();
  }
  return mappings;
}

/// Gathers every rank's notice, in rank order.
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
    // The counter and the key have a separate page, so that the usable memory is page-aligned.
    segments.push_back({reinterpret_cast<SharedWindow::StageCounter*>(mapping.data()),
                        {mapping.data() + page_bytes(), segment_bytes}});
  }
  return std::make_shared<SharedWindow>(
      rank, std::move(segments), std::make_shared<const std::vector<Mapping>>(std::move(mappings)));
}

/// Throws on every rank if any rank has failed, with the text of the first such rank.
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
  const std::size_t page = page_bytes();
  const std::size_t size_bytes = page + (segment_bytes + page - 1) / page * page;
  Notice own;
  NewSegment segment;
  attempt(own, [&] {
    if (size_bytes < segment_bytes) throw BackendError("the size exceeds the address space");
    require_memory(size_bytes, communicator.size());
    segment = make_segment(size_bytes);
    own.segment = segment.address;
  });

  std::vector<Notice> all;
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  std::vector<Mapping> mappings;
  attempt(own, [&] { map_all(all, communicator.rank()).swap(mappings); });

  // A rank may close its descriptor only after all have mapped it, and succeeds only if all do.
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  window = make_window(communicator.rank(), segment_bytes, std::move(mappings));
}

}  // namespace kolo::comm
