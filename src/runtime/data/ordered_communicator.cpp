#include "runtime/data/ordered_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>

#include "base/intentional_leak.hpp"

namespace kolo::runtime {
namespace {

constexpr int kStampTag = Communicator::kTagCount - 3;  // algorithms use the low ones

/// Of the fields by which ranks tell operations apart.
class Hash {
 public:
  explicit Hash(std::uint64_t value) : value_(value) {}
  void add(std::string_view bytes) {
    value_ = 31 * value_ + std::hash<std::string_view>()(bytes);  // the same in all processes
  }
  template <class Value>
    requires std::is_arithmetic_v<Value> || std::is_enum_v<Value>
  void add(Value value) {
    add(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
  }
  void add(const std::vector<std::int64_t>& values) {
    add(std::string_view(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(std::int64_t)));
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_;
};

/// The hash is of what ranks must agree on: all of a request of tensors on CPUs, but its name. It
/// covers those before, which may have sent nothing.
Stamp stamp_of(const Request& request, const Stamp& before) {
  Stamp stamp{.sequence = before.sequence + 1,
              .hash = 0,
              .elements = 0,
              .root = request.root,
              .kind = Stamp::Kind::Operation,
              .collective = request.collective,
              .op = request.op,
              .dtype = request.tensors.empty() ? DType::UInt8 : request.tensors.front().dtype,
              .place = Stamp::kNowhere};
  Hash hash(before.hash);
  hash.add(request.collective);
  hash.add(request.op);
  hash.add(std::string_view(request.custom));
  hash.add(request.prescale);
  hash.add(request.postscale);
  hash.add(request.root);
  hash.add(std::string_view(request.compression));
  hash.add(request.compression_scope);
  hash.add(std::string_view(request.placement));
  hash.add(request.rows);
  hash.add(std::string_view(request.purpose));
  for (const TensorType& tensor : request.tensors) {
    hash.add(tensor.dtype);
    hash.add(tensor.shape);
    stamp.elements += tensor.count();
  }
  if (!request.rows.empty()) {
    stamp.elements *= static_cast<std::uint64_t>(
        std::accumulate(request.rows.begin(), request.rows.end(), std::int64_t{0}));
  }
  stamp.hash = hash.value();
  return stamp;
}

std::string describe(const Stamp& stamp) {
  std::string text(name_of(stamp.collective));
  switch (stamp.collective) {
    case Collective::Barrier:
    case Collective::RemoveProcessSet: return text;
    case Collective::AllReduce:
    case Collective::ReduceScatter: text += " (" + std::string(name_of(stamp.op)) + ")"; break;
    case Collective::Broadcast: text += " from rank " + std::to_string(stamp.root); break;
    default: break;
  }
  return text + " of " + std::to_string(stamp.elements) + " elements of " +
         std::string(name_of(stamp.dtype));
}

static_assert(std::is_trivially_copyable_v<Stamp>);
static_assert(sizeof(Stamp) % sizeof(std::uint64_t) == 0);

}  // namespace

/// Words, since another process may write while this one reads; `sequence` is stored first, as 0,
/// and last.
struct OrderedCommunicator::Slot {
  static constexpr std::size_t kWords = sizeof(Stamp) / sizeof(std::uint64_t);

  std::atomic<std::uint64_t> sequence;
  std::array<std::atomic<std::uint64_t>, kWords> words;
};

std::size_t OrderedCommunicator::board_bytes() { return kRemembered * sizeof(Slot); }

OrderedCommunicator::OrderedCommunicator(std::unique_ptr<Communicator> inner,
                                         std::vector<int> world_ranks,
                                         std::shared_ptr<SharedWindow> board,
                                         std::vector<int> sharers)
    : inner_(std::move(inner)),
      world_ranks_(std::move(world_ranks)),
      board_(std::move(board)),
      sharers_(std::move(sharers)),
      peers_(world_ranks_.size()),
      compared_(sharers_.size()) {}

/// MPI may still read a stamp that was never received.
OrderedCommunicator::~OrderedCommunicator() {
  for (Sent& sent : sent_) leak_intentionally(std::move(sent.stamp));
}

void OrderedCommunicator::forget_sent() {
  while (!sent_.empty() && sent_.front().transfer.ready()) sent_.pop_front();
}

void OrderedCommunicator::begin(const Request& request, std::uint64_t place) {
  forget_sent();
  awaited_.clear();
  Stamp stamp = stamp_of(request, now_);
  stamp.place = place;
  show(stamp);
}

void OrderedCommunicator::leave() {
  Stamp last{};
  last.sequence = now_.sequence + 1;
  last.kind = Stamp::Kind::Left;
  show(last);
  for (int other = 0; other < size(); ++other) {
    if (std::ranges::find(sharers_, other) == sharers_.end()) tell(other);
  }
}

void OrderedCommunicator::end() try {
  forget_sent();
  for (int other = 0; other < size(); ++other) {
    if (std::ranges::find(sharers_, other) != sharers_.end()) continue;
    Peer& from = peer(other);
    while (other != inner_->rank() && from.buffer.kind != Stamp::Kind::Left) {
      if (!from.transfer) from.transfer = receive_stamp(other);
      if (!from.transfer->ready()) break;
      from.transfer.reset();
    }
  }
} catch (const BackendError&) {  // MPI keeps the rest
}

void OrderedCommunicator::give_up() {
  Stamp given_up = now_;
  given_up.kind = Stamp::Kind::GivenUp;
  show(given_up);
}

void OrderedCommunicator::show(const Stamp& stamp) {
  now_ = stamp;
  own_[stamp.sequence % kRemembered] = stamp;
  if (board_ == nullptr) return;
  Slot& slot = slots(static_cast<std::size_t>(board_->rank()))[stamp.sequence % kRemembered];
  std::array<std::uint64_t, Slot::kWords> words;
  std::memcpy(words.data(), &stamp, sizeof(Stamp));
  slot.sequence.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < words.size(); ++i) {
    slot.words[i].store(words[i], std::memory_order_release);
  }
  slot.sequence.store(stamp.sequence, std::memory_order_release);
}

Transfer OrderedCommunicator::send(std::span<const std::byte> data, int destination, int tag) {
  if (!is_sound([&] { return hear_sharers(); })) return Transfer(*this, kNever);
  tell(destination);
  bytes_sent_ += data.size();
  return inner_->send(data, destination, tag);
}

Transfer OrderedCommunicator::receive(std::span<std::byte> data, int source, int tag) {
  listen_to(source);
  Transfer transfer = inner_->receive(data, source, tag);
  if (source == inner_->rank() || peer(source).heard >= now_.sequence) return transfer;
  if (free_tokens_.empty()) {
    free_tokens_.push_back(unheard_.size());
    unheard_.emplace_back();
    free_tokens_.reserve(unheard_.size());  // abandon() may not throw
  }
  const std::uint64_t token = free_tokens_.back();
  free_tokens_.pop_back();
  unheard_[token] = {source, std::move(transfer)};
  return Transfer(*this, token);
}

bool OrderedCommunicator::test(std::uint64_t token) {
  if (token == kNever) return false;
  Unheard& receive = unheard_[token];
  try {
    if (!receive.error && !receive.transfer.ready()) return false;
  } catch (...) {
    receive.error = std::current_exception();
  }
  // A message of another size is of another operation: the stamp, which may come later, says so.
  if (!is_sound([&] { return has_stamp_of(receive.source); })) return false;
  free_tokens_.push_back(token);
  if (receive.error) std::rethrow_exception(std::exchange(receive.error, nullptr));
  return true;
}

void OrderedCommunicator::abandon(std::uint64_t token) noexcept {
  if (token == kNever) return;
  unheard_[token] = {};
  free_tokens_.push_back(token);
}

/// The order's end must not unwind an algorithm, from whose memory messages are being sent:
/// compare() throws it, outside.
template <class Compare>
bool OrderedCommunicator::is_sound(Compare compare) {
  if (broken_) return false;
  try {
    return compare();
  } catch (const OrderBroken& broken) {
    broken_ = broken;
    return false;
  }
}

/// Once for each operation, before its first message.
void OrderedCommunicator::tell(int rank) {
  if (rank == inner_->rank() || std::exchange(peer(rank).told, now_.sequence) == now_.sequence) {
    return;
  }
  auto stamp = std::make_unique<Stamp>(now_);
  Transfer transfer = inner_->send(std::as_bytes(std::span(stamp.get(), 1)), rank, kStampTag);
  sent_.push_back({std::move(stamp), std::move(transfer)});
}

/// Once for each operation.
void OrderedCommunicator::listen_to(int rank) {
  if (rank == inner_->rank() || std::exchange(peer(rank).awaited, now_.sequence) == now_.sequence) {
    return;
  }
  awaited_.push_back(rank);
}

bool OrderedCommunicator::has_room() {
  const auto is_free = [&] {
    return std::ranges::all_of(compared_, [&](std::uint64_t compared) {
      return compared + kRemembered > now_.sequence + 1;
    });
  };
  return is_free() || (hear_sharers() && is_free());
}

bool OrderedCommunicator::compare() {
  if (broken_) throw OrderBroken(*broken_);
  const bool is_given_up = !hear_sharers();
  for (int other = 0; other < size() && listens_to_all_; ++other) hear(other);
  std::erase_if(awaited_, [&](int rank) { return has_stamp_of(rank); });
  return awaited_.empty() && !is_given_up;
}

/// Compares what the ranks that share memory have shown. False if one of them has given up.
bool OrderedCommunicator::hear_sharers() {
  bool is_given_up = false;
  for (std::size_t i = 0; i < sharers_.size(); ++i) {
    while (compared_[i] < now_.sequence && has_shown(i, compared_[i] + 1)) {
      const std::optional<Stamp> other = shown_by(i, compared_[i] + 1);
      const bool is_last = other && other->kind == Stamp::Kind::GivenUp;
      if (is_last) {
        is_given_up = true;  // the news why are under way
        break;
      }
      ++compared_[i];
      if (other) compare(sharers_[i], *other);
    }
  }
  return !is_given_up;
}

/// Whether `rank`, from which this operation receives, is known to run the same one.
bool OrderedCommunicator::has_stamp_of(int rank) {
  if (!hear(rank)) return false;
  if (const std::optional<Stamp>& other = peer(rank).incoming) went_on(rank, *other);
  return true;
}

/// Whether all stamps of `rank` up to that of this operation have arrived. One of a later operation
/// is kept: `rank` has sent this one nothing in this operation.
bool OrderedCommunicator::hear(int rank) {
  Peer& from = peer(rank);
  while (rank != inner_->rank() && from.heard < now_.sequence) {
    if (!from.incoming) {
      if (!from.transfer) from.transfer = receive_stamp(rank);
      try {
        if (!from.transfer->ready()) return false;
      } catch (...) {
        from.transfer.reset();  // it would be ready the next time, without a stamp
        throw;
      }
      from.transfer.reset();
      from.incoming = from.buffer;
    }
    if (from.incoming->sequence > now_.sequence) return true;
    from.heard = from.incoming->sequence;
    compare(rank, *std::exchange(from.incoming, std::nullopt));
  }
  return true;
}

Transfer OrderedCommunicator::receive_stamp(int rank) {
  return inner_->receive(std::as_writable_bytes(std::span(&peer(rank).buffer, 1)), rank, kStampTag);
}

/// Data of this operation are awaited from `rank`.
void OrderedCommunicator::went_on(int rank, const Stamp& other) const {
  throw OrderBroken{ErrorKind::Mismatch, rank,
                    "went on to operation " + std::to_string(other.sequence) +
                        " of the set without a part in operation " + std::to_string(now_.sequence) +
                        " of " + rank_text(inner_->rank()) + ", " + describe(now_) +
                        ". Submit the same operations on all ranks."};
}

std::string OrderedCommunicator::rank_text(int rank) const {
  return "rank " + std::to_string(world_ranks_[static_cast<std::size_t>(rank)]);
}

bool OrderedCommunicator::remembers(const Stamp& other) const {
  return own_[other.sequence % kRemembered].sequence == other.sequence;
}

/// A stamp that arrives when its operation is forgotten came with data that nobody awaited. A later
/// operation would take them for its own.
void OrderedCommunicator::compare(int rank, const Stamp& other) const {
  const auto fail = [&](ErrorKind kind, const std::string& how) {
    throw OrderBroken{kind, rank, how};
  };
  const Stamp& own = own_[other.sequence % kRemembered];
  const bool is_remembered = remembers(other);
  if (is_remembered && own.agrees_with(other)) return;
  const std::string place = "operation " + std::to_string(other.sequence) + " of the set";
  if (other.kind == Stamp::Kind::Left) {
    fail(ErrorKind::Shutdown,
         "shut Kolo down or removed the set before it had submitted " + place +
             (is_remembered ? ", " + describe(own) + " on " + rank_text(inner_->rank())
                            : std::string()));
  }
  const bool has_other_left = other.collective == Collective::RemoveProcessSet;
  if (is_remembered && (has_other_left || own.collective == Collective::RemoveProcessSet)) {
    throw OrderBroken{ErrorKind::Shutdown, has_other_left ? rank : inner_->rank(),
                      "has closed the process set: it removed the set in place of " + place + ", " +
                          describe(has_other_left ? own : other) + " on " +
                          rank_text(has_other_left ? inner_->rank() : rank) +
                          ". Remove a set once all its operations have ended."};
  }
  const std::string theirs = describe(other);
  const std::string ours = is_remembered ? describe(own) : "another operation";
  fail(ErrorKind::Mismatch,
       "submitted " + theirs + " as " + place + ", where " + rank_text(inner_->rank()) +
           " submitted " +
           (theirs == ours ? "one of another shape, factor, compression, placement or purpose, or "
                             "others before it"
                           : ours) +
           ". Submit the same operations in the same order on all ranks.");
}

OrderedCommunicator::Slot* OrderedCommunicator::slots(std::size_t sharer) const {
  return reinterpret_cast<Slot*>(board_->segment(static_cast<int>(sharer)).data());
}

/// This stamp or, in its slot, a later one.
bool OrderedCommunicator::has_shown(std::size_t sharer, std::uint64_t sequence) const {
  const Slot& slot = slots(sharer)[sequence % kRemembered];
  return slot.sequence.load(std::memory_order_acquire) >= sequence;
}

std::optional<Stamp> OrderedCommunicator::shown_by(std::size_t sharer,
                                                   std::uint64_t sequence) const {
  const Slot& slot = slots(sharer)[sequence % kRemembered];
  if (slot.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  std::array<std::uint64_t, Slot::kWords> words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = slot.words[i].load(std::memory_order_acquire);
  }
  if (slot.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  Stamp stamp;
  std::memcpy(&stamp, words.data(), sizeof(Stamp));
  return stamp;
}

bool OrderedCommunicator::have_sharers_begun() {
  compare();
  for (std::size_t i = 0; i < sharers_.size(); ++i) {
    if (compared_[i] < now_.sequence) return false;
  }
  return true;
}

/// A rank that no longer shows the stamp has ended the operation without the others' memory.
std::optional<std::vector<std::uint64_t>> OrderedCommunicator::places() const {
  std::vector<std::uint64_t> places;
  for (std::size_t i = 0; i < sharers_.size(); ++i) {
    const std::optional<Stamp> stamp = shown_by(i, now_.sequence);
    if (!stamp || stamp->place == Stamp::kNowhere) return std::nullopt;
    places.push_back(stamp->place);
  }
  return places;
}

std::vector<int> OrderedCommunicator::not_begun() {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < sharers_.size(); ++i) {
    if (compared_[i] < now_.sequence) ranks.push_back(sharers_[i]);
  }
  for (const int rank : awaited_) {
    if (peer(rank).heard < now_.sequence && std::ranges::find(ranks, rank) == ranks.end()) {
      ranks.push_back(rank);
    }
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::string OrderedCommunicator::place() const {
  return "operation " + std::to_string(now_.sequence) + " of the set, " + describe(now_);
}

}  // namespace kolo::runtime
