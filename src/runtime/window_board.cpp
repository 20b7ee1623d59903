#include "runtime/window_board.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace kolo::runtime {
namespace {

constexpr std::size_t kMaxWords = Header::kMaxBits / 64;
constexpr std::size_t kMaxText = 1000;

}  // namespace

struct alignas(64) WindowBoard::Slot {
  std::atomic<std::uint64_t> exchange;  // stored last, with release
  bool has_unknown;
  bool has_expired;
  bool has_stalled;
  bool has_joined;
  std::int32_t shutdown_rank;
  std::uint16_t own_words;
  std::uint16_t ready_words;
  // `own`, then `ready` behind it: a steady program's header is one cache line.
  std::uint64_t words[2 * kMaxWords];
};

struct alignas(64) WindowBoard::Cell {
  // Written at every turn and read now and then: not in a line with what all read at every turn.
  std::atomic<std::uint64_t> beats;
  alignas(64) std::atomic<std::uint64_t> ask;
  std::atomic<bool> has_left;
  std::atomic<bool> has_loss;  // stored after the loss itself, with release
  std::int32_t lost_rank;
  char lost_how[kMaxText];
  Slot slots[2];
};

// All processes of a node run the same program, so the layout is the compiler's.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<bool>::is_always_lock_free);

std::size_t WindowBoard::segment_bytes() { return sizeof(Cell); }

WindowBoard::WindowBoard(std::shared_ptr<SharedWindow> window)
    : window_(std::move(window)), last_beats_(static_cast<std::size_t>(window_->size())) {}

WindowBoard::Cell& WindowBoard::cell(int rank) {
  return *reinterpret_cast<Cell*>(window_->segment(rank).data());
}

void WindowBoard::post(const Header& header) {
  Slot& slot = cell(window_->rank()).slots[header.exchange % 2];
  slot.has_unknown = header.has_unknown;
  slot.has_expired = header.has_expired;
  slot.has_stalled = header.has_stalled;
  slot.has_joined = header.joined.test(window_->rank());
  slot.shutdown_rank = header.shutdown_rank;
  slot.own_words = static_cast<std::uint16_t>(header.own.word_count());
  slot.ready_words = static_cast<std::uint16_t>(header.ready.word_count());
  std::uint64_t* word = slot.words;
  for (std::size_t i = 0; i < slot.own_words; ++i) *word++ = header.own.word(i);
  for (std::size_t i = 0; i < slot.ready_words; ++i) *word++ = header.ready.word(i);
  slot.exchange.store(header.exchange, std::memory_order_release);
  bytes_shown_ += static_cast<std::size_t>(reinterpret_cast<std::byte*>(word) -
                                           reinterpret_cast<std::byte*>(&slot));
}

std::optional<Header> WindowBoard::merged(std::uint64_t exchange) {
  if (seen_exchange_ != exchange) {
    seen_exchange_ = exchange;
    seen_ = 0;
  }
  while (seen_ < window_->size() &&
         cell(seen_).slots[exchange % 2].exchange.load(std::memory_order_acquire) == exchange) {
    ++seen_;
  }
  if (seen_ < window_->size()) return std::nullopt;

  std::optional<Header> merged;
  for (int rank = 0; rank < window_->size(); ++rank) {
    const Slot& slot = cell(rank).slots[exchange % 2];
    Header header{
        exchange, slot.has_unknown, slot.has_expired, slot.has_stalled, slot.shutdown_rank, {}, {},
        {}};
    if (slot.has_joined) header.joined.set(rank);
    for (std::size_t i = 0; i < slot.own_words; ++i) header.own.set_word(i, slot.words[i]);
    for (std::size_t i = 0; i < slot.ready_words; ++i) {
      header.ready.set_word(i, slot.words[slot.own_words + i]);
    }
    if (merged) {
      merged->merge(header);
    } else {
      merged = std::move(header);
    }
  }
  return merged;
}

void WindowBoard::ask(std::uint64_t exchange) {
  cell(window_->rank()).ask.store(exchange, std::memory_order_release);
}

std::uint64_t WindowBoard::highest_ask() {
  std::uint64_t highest = 0;
  for (int rank = 0; rank < window_->size(); ++rank) {
    highest = std::max(highest, cell(rank).ask.load(std::memory_order_acquire));
  }
  return highest;
}

void WindowBoard::publish_lost(const Loss& loss) {
  Cell& own = cell(window_->rank());
  if (own.has_loss.load(std::memory_order_relaxed)) return;
  own.lost_rank = loss.rank;
  const std::size_t length = std::min(loss.how.size(), kMaxText - 1);
  std::memcpy(own.lost_how, loss.how.data(), length);
  own.lost_how[length] = '\0';
  own.has_loss.store(true, std::memory_order_release);
}

std::optional<HeaderBoard::Loss> WindowBoard::lost() {
  for (int rank = 0; rank < window_->size(); ++rank) {
    const Cell& other = cell(rank);
    if (other.has_loss.load(std::memory_order_acquire)) {
      return Loss{other.lost_rank, other.lost_how};
    }
  }
  return std::nullopt;
}

void WindowBoard::leave() { cell(window_->rank()).has_left.store(true, std::memory_order_release); }

bool WindowBoard::has_left(int rank) { return cell(rank).has_left.load(std::memory_order_acquire); }

void WindowBoard::beat() { cell(window_->rank()).beats.fetch_add(1, std::memory_order_relaxed); }

std::vector<int> WindowBoard::silent_ranks() {
  std::vector<int> silent;
  for (int rank = 0; rank < window_->size(); ++rank) {
    const std::uint64_t beats = cell(rank).beats.load(std::memory_order_relaxed);
    const bool has_beaten =
        std::exchange(last_beats_[static_cast<std::size_t>(rank)], beats) != beats;
    if (!has_beaten && rank != window_->rank() && !has_left(rank)) silent.push_back(rank);
  }
  return silent;
}

}  // namespace kolo::runtime
