#include "insight/recorder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

namespace kolo::insight {
namespace {

constexpr std::size_t kEventWords = (sizeof(Event) + 7) / 8;
constexpr std::size_t kTextWords = Recorder::kMaxText / 8;
constexpr std::size_t kMaxProblems = 16;
constexpr std::size_t kMaxNamedSets = 1024;
static_assert(std::is_trivially_copyable_v<Event> && Recorder::kMaxText % 8 == 0);

using Word = std::atomic<std::uint64_t>;

// Each word is stored with release and read with acquire: who reads a new word then also reads that
// the entry is being written. On x86 both are plain moves.
void store(Word* to, const void* from, std::size_t bytes) {
  const auto* place = static_cast<const char*>(from);
  for (; bytes > 0; ++to) {
    const std::size_t part = std::min(bytes, sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, place, part);
    to->store(word, std::memory_order_release);
    place += part;
    bytes -= part;
  }
}

void load(void* to, const Word* from, std::size_t bytes) {
  auto* place = static_cast<char*>(to);
  for (; bytes > 0; ++from) {
    const std::size_t part = std::min(bytes, sizeof(std::uint64_t));
    const std::uint64_t word = from->load(std::memory_order_acquire);
    std::memcpy(place, &word, part);
    place += part;
    bytes -= part;
  }
}

std::uint64_t pack(std::uint32_t step, Phase phase) {
  return std::uint64_t{step} << 8 | static_cast<std::uint8_t>(phase);
}

Phase phase_of(std::uint64_t packed) { return static_cast<Phase>(packed & 0xFF); }

std::uint32_t step_of(std::uint64_t packed) { return static_cast<std::uint32_t>(packed >> 8); }

}  // namespace

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::None: return "start";
    case Phase::Forward: return "forward";
    case Phase::Backward: return "backward";
    case Phase::Synced: return "before step";
    case Phase::Step: return "step";
  }
  return "unknown";
}

struct alignas(64) Recorder::Slot {
  Word state;  // 2 (number + 1) once the event is complete, one less while it is written
  Word length;
  std::array<Word, kEventWords> event;
  std::array<Word, kTextWords> text;
};

Recorder::Recorder(Origin origin)
    : origin_(std::move(origin)), slots_(std::make_unique<Slot[]>(kCapacity)) {}

Recorder::~Recorder() = default;

void Recorder::add(const Event& event, std::string_view text) noexcept {
  const std::uint64_t number = count_.fetch_add(1, std::memory_order_acq_rel);
  Slot& slot = slots_[number % kCapacity];
  const std::uint64_t complete = 2 * (number + 1);
  std::uint64_t previous = slot.state.load(std::memory_order_relaxed);
  // A writer, this one or another, may have been interrupted while the others went all the way
  // round.
  if (previous % 2 != 0 || previous > complete ||
      !slot.state.compare_exchange_strong(previous, complete - 1, std::memory_order_acquire)) {
    return;
  }
  if (text.size() > kMaxText) {
    text.remove_prefix(text.size() - kMaxText);
    while (!text.empty() && (text.front() & 0xC0) == 0x80) text.remove_prefix(1);  // UTF-8
  }
  slot.length.store(text.size(), std::memory_order_release);
  store(slot.event.data(), &event, sizeof(event));
  store(slot.text.data(), text.data(), text.size());
  slot.state.store(complete, std::memory_order_release);
  // The ring is larger than the caches next to the core.
  const auto* const next = reinterpret_cast<const char*>(&slots_[(number + 1) % kCapacity]);
  for (std::size_t line = 0; line < sizeof(Slot); line += 64) __builtin_prefetch(next + line, 1);
}

std::optional<Recorder::Entry> Recorder::read(std::uint64_t number) const {
  const Slot& slot = slots_[number % kCapacity];
  const std::uint64_t complete = 2 * (number + 1);
  if (slot.state.load(std::memory_order_acquire) != complete) return std::nullopt;
  Entry entry;
  load(&entry.event, slot.event.data(), sizeof(entry.event));
  entry.text.resize(std::min<std::size_t>(slot.length.load(std::memory_order_acquire), kMaxText));
  load(entry.text.data(), slot.text.data(), entry.text.size());
  if (slot.state.load(std::memory_order_relaxed) != complete) return std::nullopt;
  return entry;
}

Recorder::Activity Recorder::activity() const {
  const std::uint64_t packed = activity_.load(std::memory_order_relaxed);
  return {phase_of(packed), step_of(packed), Event::Time{since_.load(std::memory_order_relaxed)}};
}

void Recorder::enter(Phase phase) noexcept {
  const Event::Time now = time_of(Clock::now());
  const std::uint64_t old = activity_.load(std::memory_order_relaxed);
  if (phase_of(old) == phase) return;
  const bool is_first = phase_of(old) == Phase::None;
  const bool ends_step = phase == Phase::Forward && !is_first;
  const std::uint32_t step = step_of(old) + (ends_step || is_first ? 1 : 0);
  const std::int64_t blocked = blocked_.load(std::memory_order_relaxed);
  if (is_first) blocked_before_.store(blocked, std::memory_order_relaxed);
  activity_.store(pack(step, phase), std::memory_order_relaxed);
  Event event{.kind = Event::Kind::Phase, .phase = phase_of(old), .step = step_of(old)};
  event.time = now;
  event.begin = Event::Time{since_.exchange(now.count(), std::memory_order_relaxed)};
  if (phase_of(old) == Phase::Step) {
    event.waited =
        Event::Time{blocked - blocked_before_.exchange(blocked, std::memory_order_relaxed)};
    exposed_.fetch_add(event.waited.count(), std::memory_order_relaxed);
  }
  if (ends_step) {
    steps_.fetch_add(1, std::memory_order_relaxed);
    last_step_.store(now.count(), std::memory_order_relaxed);
  }
  if (event.phase != Phase::None) add(event, name_of(event.phase));
}

void Recorder::name_set(int number, std::string name) {
  const Lock lock(lock_);
  sets_[number] = std::move(name);
  if (number == 0) return;
  added_sets_.push_back(number);
  if (added_sets_.size() <= kMaxNamedSets) return;
  sets_.erase(added_sets_.front());
  added_sets_.pop_front();
}

std::string Recorder::name_of_set(int number) const {
  const Lock lock(lock_);
  const auto found = sets_.find(number);
  return found == sets_.end() ? "set " + std::to_string(number) : found->second;
}

void Recorder::add(Problem problem) {
  const Lock lock(lock_);
  if (problems_.size() == kMaxProblems) problems_.pop_back();
  problems_.push_back(std::move(problem));
}

std::vector<Recorder::Problem> Recorder::problems() const {
  const Lock lock(lock_);
  return problems_;
}

}  // namespace kolo::insight
