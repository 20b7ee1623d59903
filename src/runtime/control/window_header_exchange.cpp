#include "runtime/control/window_header_exchange.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::runtime {
namespace {

constexpr std::size_t kMaxWords = Header::kMaxBits / 64;
constexpr std::size_t kMaxText = 1000;
constexpr std::int32_t kNoRank = -1;

}  // namespace

struct alignas(64) WindowHeaderExchange::Slot {
  std::atomic<std::uint64_t> exchange;  // stored last, with release
  // Bytes, not bools: reading a bool from memory that another process has damaged is undefined.
  std::uint8_t has_unknown;
  std::uint8_t has_expired;
  std::uint8_t has_stalled;
  std::uint8_t has_joined;
  std::int32_t shutdown_rank;  // kNoRank: none
  std::int32_t thrower_rank;   // the same
  std::int64_t newest;         // Newest::at
  std::uint16_t own_words;
  std::uint16_t ready_words;
  // `own`, then `ready`, without a gap: a steady program's header is one cache line.
  std::uint64_t words[2 * kMaxWords];
};

struct alignas(64) WindowHeaderExchange::Cell {
  // Written in every progress step but read rarely: kept off the cache line that all ranks poll.
  std::atomic<std::uint64_t> beats;
  alignas(64) std::atomic<std::uint64_t> wake_up_request;
  std::atomic<std::uint8_t> has_left;
  std::atomic<std::uint8_t> has_ended;
  std::atomic<std::uint8_t> has_lost;  // stored after the loss, with release
  std::int32_t lost_rank;
  std::uint8_t lost_kind;  // ErrorKind
  char lost_how[kMaxText];
  Slot slots[2];
};

// All processes of a node run the same program, so they share the compiler's layout.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint8_t>::is_always_lock_free);

std::size_t WindowHeaderExchange::segment_bytes() { return sizeof(Cell); }

WindowHeaderExchange::WindowHeaderExchange(std::shared_ptr<SharedWindow> window)
    : window_(std::move(window)), last_beats_(static_cast<std::size_t>(window_->size())) {}

WindowHeaderExchange::Cell& WindowHeaderExchange::cell(int rank) {
  return *reinterpret_cast<Cell*>(window_->segment(rank).data());
}

void WindowHeaderExchange::post(const Header& header) {
  if (std::max(header.own.word_count(), header.ready.word_count()) > kMaxWords) {
    throw BackendError("a header shows " + std::to_string(Header::kMaxBits) +
                       " requests at most, this one has bits beyond them");
  }
  Slot& slot = cell(window_->rank()).slots[header.exchange % 2];
  slot.has_unknown = header.has_unknown;
  slot.has_expired = header.has_expired;
  slot.has_stalled = header.has_stalled;
  slot.has_joined = header.joined.test(window_->rank());
  slot.shutdown_rank = header.shutdown_rank.value_or(kNoRank);
  slot.thrower_rank = header.thrower_rank.value_or(kNoRank);
  slot.newest = header.newest.at;
  slot.own_words = static_cast<std::uint16_t>(header.own.word_count());
  slot.ready_words = static_cast<std::uint16_t>(header.ready.word_count());
  std::uint64_t* word = slot.words;
  for (std::size_t i = 0; i < slot.own_words; ++i) *word++ = header.own.word(i);
  for (std::size_t i = 0; i < slot.ready_words; ++i) *word++ = header.ready.word(i);
  slot.exchange.store(header.exchange, std::memory_order_release);
  posted_ = header.exchange;
  bytes_shown_ += static_cast<std::size_t>(reinterpret_cast<std::byte*>(word) -
                                           reinterpret_cast<std::byte*>(&slot));
}

/// Reads a posted header. Checks all numbers: they come from another process.
Header WindowHeaderExchange::header_of(int rank, std::uint64_t exchange) {
  const Slot& slot = cell(rank).slots[exchange % 2];
  const std::size_t own_words = slot.own_words;
  const std::size_t ready_words = slot.ready_words;
  if (own_words > kMaxWords || ready_words > kMaxWords) {
    reject(rank, "its header has " + std::to_string(std::max(own_words, ready_words)) +
                     " words of bits, expected at most " + std::to_string(kMaxWords));
  }
  Header header{exchange,
                slot.has_unknown != 0,
                slot.has_expired != 0,
                slot.has_stalled != 0,
                std::nullopt,
                std::nullopt,
                {},
                {},
                {},
                {}};
  if (slot.newest != Newest::kNever) header.newest = {slot.newest, rank};
  if (slot.shutdown_rank != kNoRank) header.shutdown_rank = member(rank, slot.shutdown_rank);
  if (slot.thrower_rank != kNoRank) header.thrower_rank = member(rank, slot.thrower_rank);
  if (slot.has_joined != 0) header.joined.set(rank);
  for (std::size_t i = 0; i < own_words; ++i) header.own.set_word(i, slot.words[i]);
  for (std::size_t i = 0; i < ready_words; ++i) header.ready.set_word(i, slot.words[own_words + i]);
  return header;
}

std::optional<Header> WindowHeaderExchange::merged(std::uint64_t exchange) {
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
    Header header = header_of(rank, exchange);
    if (merged) {
      merged->merge(header);
    } else {
      merged = std::move(header);
    }
  }
  return merged;
}

/// Whether `rank` has posted, with `bit` if any, the exchange that this rank posted last, or the
/// next one: no rank overwrites either before this rank has posted once more.
bool WindowHeaderExchange::has_shown(int rank, std::optional<int> bit) {
  for (const std::uint64_t exchange : {posted_ + 1, posted_}) {
    const Slot& slot = cell(rank).slots[exchange % 2];
    if (slot.exchange.load(std::memory_order_acquire) != exchange) continue;
    if (!bit) return true;
    const auto word = static_cast<std::size_t>(*bit) / 64;
    const std::size_t place = slot.own_words + word;
    const bool is_there = word < slot.ready_words && place < 2 * kMaxWords;
    if (is_there && (slot.words[place] >> (*bit % 64) & 1) != 0) return true;
  }
  return false;
}

int WindowHeaderExchange::awaited(std::optional<int> bit) {
  if (!has_shown(window_->rank(), bit)) return -1;
  int rank = 0;
  while (rank < window_->size() && has_shown(rank, bit)) ++rank;
  return rank < window_->size() ? rank : -1;
}

void WindowHeaderExchange::request_wake_up(std::uint64_t exchange) {
  cell(window_->rank()).wake_up_request.store(exchange, std::memory_order_release);
}

std::uint64_t WindowHeaderExchange::highest_wake_up_request() {
  std::uint64_t highest = 0;
  for (int rank = 0; rank < window_->size(); ++rank) {
    highest = std::max(highest, cell(rank).wake_up_request.load(std::memory_order_acquire));
  }
  return highest;
}

void WindowHeaderExchange::publish_lost(const LostRank& lost) {
  Cell& own = cell(window_->rank());
  if (own.has_lost.load(std::memory_order_relaxed) != 0) return;
  own.lost_rank = lost.rank;
  own.lost_kind = static_cast<std::uint8_t>(lost.kind);
  const std::size_t length = std::min(lost.how.size(), kMaxText - 1);
  std::memcpy(own.lost_how, lost.how.data(), length);
  own.lost_how[length] = '\0';
  own.has_lost.store(1, std::memory_order_release);
}

std::optional<LostRank> WindowHeaderExchange::lost() {
  for (int rank = 0; rank < window_->size(); ++rank) {
    const Cell& other = cell(rank);
    if (other.has_lost.load(std::memory_order_acquire) != 0) {
      const std::size_t length = ::strnlen(other.lost_how, kMaxText);
      if (other.lost_kind > static_cast<std::uint8_t>(ErrorKind::Backend)) {
        reject(rank, "it names an error of kind " + std::to_string(other.lost_kind));
      }
      return LostRank{member(rank, other.lost_rank), std::string(other.lost_how, length),
                      static_cast<ErrorKind>(other.lost_kind)};
    }
  }
  return std::nullopt;
}

/// Checks a rank that `reporter` names.
int WindowHeaderExchange::member(int reporter, int rank) const {
  if (rank < 0 || rank >= window_->size()) {
    reject(reporter, "it names rank " + std::to_string(rank) + ", expected 0 to " +
                         std::to_string(window_->size() - 1));
  }
  return rank;
}

void WindowHeaderExchange::reject(int rank, const std::string& why) const {
  throw BackendError("header exchange: what rank " + std::to_string(rank) +
                     " of the process set shows in shared memory is damaged: " + why);
}

void WindowHeaderExchange::leave() {
  cell(window_->rank()).has_left.store(1, std::memory_order_release);
}

bool WindowHeaderExchange::has_left(int rank) {
  return cell(rank).has_left.load(std::memory_order_acquire) != 0;
}

void WindowHeaderExchange::end() {
  cell(window_->rank()).has_ended.store(1, std::memory_order_relaxed);
}

bool WindowHeaderExchange::has_ended(int rank) {
  return cell(rank).has_ended.load(std::memory_order_relaxed) != 0;
}

void WindowHeaderExchange::beat() {
  cell(window_->rank()).beats.fetch_add(1, std::memory_order_relaxed);
}

std::vector<int> WindowHeaderExchange::silent_ranks() {
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
