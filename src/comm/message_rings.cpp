#include "comm/message_rings.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "comm/message_bounds.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

constexpr std::size_t kBytesPerRank = std::size_t{1}
                                      << 20;  // of all its rings, if they are not the shortest
constexpr std::size_t kShortestRing = std::size_t{16} << 10;
constexpr std::size_t kLongestRing = std::size_t{256} << 10;
constexpr std::size_t kLongestWhole = 4096;
constexpr std::size_t kLongestData = std::size_t{32} << 10;
constexpr std::size_t kBitsPerBell = 64;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

MessageRings::MessageRings(int size)
    : layout_(static_cast<std::size_t>(size)),
      segment_(make_segment(page_bytes() + layout_.bytes_at + layout_.size * layout_.ring_bytes)),
      peers_(layout_.size) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(kShortestRing % kUnit == 0 && kLongestWhole + kUnit <= kShortestRing / 2);
}

MessageRings::~MessageRings() = default;

MessageRings::Layout::Layout(std::size_t ranks)
    : size(ranks),
      ring_bytes(std::clamp(std::bit_floor(kBytesPerRank / ranks), kShortestRing, kLongestRing)),
      bells((ranks + kBitsPerBell - 1) / kBitsPerBell),
      rings_at(rounded_up(bells * sizeof(Bell), alignof(Ring))),
      bytes_at(whole_pages(rings_at + ranks * sizeof(Ring))) {}

/// All bytes of a new segment are zero, and so are its atomics.
void MessageRings::connect(int rank, std::vector<int> ranks,
                           std::span<const SegmentAddress> segments) {
  ranks_ = std::move(ranks);
  place_ = place_of(rank);
  for (const SegmentAddress& address : segments) mappings_.push_back(open_segment(address));
  const auto memory_of = [&](std::size_t owner) { return mappings_[owner].data() + page_bytes(); };
  const auto ring = [&](std::size_t receiver, std::size_t sender) {
    return reinterpret_cast<Ring*>(memory_of(receiver) + layout_.rings_at) + sender;
  };
  const auto bytes = [&](std::size_t receiver, std::size_t sender) {
    return memory_of(receiver) + layout_.bytes_at + sender * layout_.ring_bytes;
  };
  const auto own = static_cast<std::size_t>(place_);
  bells_ = {reinterpret_cast<Bell*>(memory_of(own)), layout_.bells};
  for (std::size_t other = 0; other < layout_.size; ++other) {
    if (other != own) mappings_[other].leave_out_of_core_dumps();
    Peer& peer = peers_[other];
    peer.out = ring(other, own);
    peer.out_bytes = bytes(other, own);
    peer.bell = reinterpret_cast<Bell*>(memory_of(other)) + own / kBitsPerBell;
    peer.in = ring(own, other);
    peer.in_bytes = bytes(own, other);
  }
}

// --- communicators ---

class MessageRings::RingCommunicator final : public Communicator {
 public:
  RingCommunicator(MessageRings& rings, std::span<const int> ranks, int channel)
      : rings_(rings), channel_(channel) {
    for (const int rank : ranks) places_.push_back(rings.place_of(rank));
  }

  int rank() const override { return member_of(rings_.place_); }
  int size() const override { return static_cast<int>(places_.size()); }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override {
    check_message(*this, data.size(), destination, tag);
    bytes_sent_ += data.size();
    const Lock lock(rings_.lock_);
    return transfer_of(rings_.send({.channel = channel_,
                                    .tag = tag,
                                    .peer = place_of(destination),
                                    .from = data.data(),
                                    .size = data.size()}));
  }

  Transfer receive(std::span<std::byte> data, int source, int tag) override {
    check_message(*this, data.size(), source, tag);
    const Lock lock(rings_.lock_);
    return transfer_of(rings_.receive({.state = Message::State::Posted,
                                       .is_receive = true,
                                       .channel = channel_,
                                       .tag = tag,
                                       .peer = place_of(source),
                                       .to = data.data(),
                                       .size = data.size()}));
  }

  std::optional<Envelope> probe(int tag) override {
    check_message(*this, 0, rank(), tag);
    const Lock lock(rings_.lock_);
    rings_.make_progress();
    for (const Arrival& arrival : rings_.channels_[channel_].arrivals) {
      if (arrival.frame.tag == tag) return Envelope{member_of(arrival.source), arrival.frame.size};
    }
    return std::nullopt;
  }

  UnderWay give_up_receives() override {
    const Lock lock(rings_.lock_);
    // None that is posted gets a message any more; the data of long ones arrive as they are tested.
    rings_.channels_[channel_].posted.clear();
    rings_.make_progress();
    UnderWay under_way;
    for (const Message& message : rings_.messages_) {
      const bool moves = message.is_receive
                             ? message.state == Message::State::Moving && message.to != nullptr
                             : message.state != Message::State::Done;
      if (message.channel != channel_ || !moves) continue;
      std::vector<int>& ranks = message.is_receive ? under_way.from : under_way.to;
      const int member = member_of(message.peer);
      if (std::ranges::find(ranks, member) == ranks.end()) ranks.push_back(member);
    }
    return under_way;
  }

 private:
  Message& message_of(std::uint64_t token) KOLO_REQUIRES(rings_.lock_) {
    return rings_.messages_[token];
  }
  Transfer transfer_of(Message* message) {
    return message == nullptr ? Transfer() : Transfer(*this, message->token);
  }

  bool test(std::uint64_t token) override {
    const Lock lock(rings_.lock_);
    Message& message = message_of(token);
    try {
      if (message.state != Message::State::Done) rings_.make_progress();
    } catch (...) {  // no test follows
      rings_.abandon(message);
      throw;
    }
    if (message.state != Message::State::Done) {
      awaited_ = member_of(message.peer);
      return false;
    }
    const Message ended = message;
    rings_.remove(message);
    if (!ended.is_receive || ended.arriving == ended.size) return true;
    throw BackendError("receive from rank " +
                       std::to_string(rings_.ranks_[static_cast<std::size_t>(ended.peer)]) +
                       ": expected " + std::to_string(ended.size) + " bytes, got " +
                       std::to_string(ended.arriving));
  }

  void abandon(std::uint64_t token) noexcept override {
    const Lock lock(rings_.lock_);
    rings_.abandon(message_of(token));
  }

  int place_of(int member) const { return places_[static_cast<std::size_t>(member)]; }
  int member_of(int place) const {
    return static_cast<int>(std::ranges::lower_bound(places_, place) - places_.begin());
  }

  MessageRings& rings_;
  std::vector<int> places_;  // of the members in `rings_`, ascending
  const int channel_;
};

int MessageRings::place_of(int rank) const {
  return static_cast<int>(std::ranges::lower_bound(ranks_, rank) - ranks_.begin());
}

std::unique_ptr<Communicator> MessageRings::make_communicator(std::span<const int> ranks,
                                                              int channel) {
  return std::make_unique<RingCommunicator>(*this, ranks, channel);
}

// --- calls ---

MessageRings::Message* MessageRings::add(const Message& message) {
  if (unused_.empty()) {
    unused_.push_back(messages_.size());
    messages_.emplace_back();
  }
  const std::uint64_t token = unused_.back();
  unused_.pop_back();
  messages_[token] = message;
  messages_[token].token = token;
  return &messages_[token];
}

void MessageRings::remove(Message& message) {
  message.state = Message::State::Done;
  unused_.push_back(message.token);
}

/// Null: it has been sent.
MessageRings::Message* MessageRings::send(Message message) {
  Peer& peer = peers_[static_cast<std::size_t>(message.peer)];
  const bool is_short = message.size <= kLongestWhole;
  if (is_short && peer.sends.empty() &&
      put(peer, frame_of(message, Kind::Whole), {message.from, message.size})) {
    ring_bell(peer);
    return nullptr;
  }
  if (!is_short) message.id = ++last_id_;
  Message* const added = add(message);
  peer.sends.push_back(added);
  queue_up(added->peer);
  flush(peer);
  return added;
}

/// Null: it has arrived.
MessageRings::Message* MessageRings::receive(Message message) {
  Channel& channel = channels_[message.channel];
  const auto arrival = std::ranges::find_if(channel.arrivals, [&](const Arrival& each) {
    return each.source == message.peer && each.frame.tag == message.tag;
  });
  if (arrival == channel.arrivals.end()) {
    Message* const posted = add(message);
    channel.posted.push_back(posted);
    return posted;
  }
  const Arrival taken = std::move(*arrival);
  channel.arrivals.erase(arrival);
  if (taken.frame.kind == Kind::Offer) {
    Message* const accepted = add(message);
    accept(*accepted, taken.frame);
    return accepted;
  }
  message.arriving = taken.data.size();
  if (message.arriving == message.size) {
    std::ranges::copy(taken.data, message.to);
    return nullptr;
  }
  message.state = Message::State::Done;  // an error, of which the test tells
  return add(message);
}

/// The caller keeps the memory of a send; that of a receive is free.
void MessageRings::abandon(Message& message) {
  message.is_abandoned = true;
  message.to = nullptr;
  if (message.state == Message::State::Posted) {
    std::erase(channels_[message.channel].posted, &message);
    message.state = Message::State::Done;
  }
  if (message.state == Message::State::Done) remove(message);
}

// --- from rings ---

void MessageRings::make_progress() {
  for (std::size_t word = 0; word < bells_.size(); ++word) {
    if (bells_[word].load(std::memory_order_relaxed) == 0) continue;
    // Whoever writes from here on rings once more.
    std::uint64_t rung = bells_[word].exchange(0);
    for (; rung != 0; rung &= rung - 1) {
      take_frames(static_cast<int>(word * kBitsPerBell) + std::countr_zero(rung));
    }
  }
  std::erase_if(unsent_, [&](int place) KOLO_REQUIRES(lock_) {
    return flush(peers_[static_cast<std::size_t>(place)]);
  });
  if (move_others_) move_others_();
}

void MessageRings::take_frames(int source) {
  Peer& peer = peers_[static_cast<std::size_t>(source)];
  const std::uint64_t written = peer.in->written.load(std::memory_order_acquire);
  while (peer.read != written) {
    Frame frame;
    copy_out(peer, peer.read, reinterpret_cast<std::byte*>(&frame), sizeof frame);
    const std::uint64_t data_at = peer.read + kUnit;
    const std::uint64_t next = data_at + rounded_up(frame.bytes, kUnit);
    if (next > written || frame.kind > Kind::Data) {
      throw BackendError("a message from rank " +
                         std::to_string(ranks_[static_cast<std::size_t>(source)]) +
                         " is damaged, or from another version of Kolo");
    }
    take(source, frame, data_at);
    peer.read = next;
    peer.in->read.store(next, std::memory_order_release);
  }
}

void MessageRings::take(int source, const Frame& frame, std::uint64_t data_at) {
  switch (frame.kind) {
    case Kind::Whole:
    case Kind::Offer: return take_message(source, frame, data_at);
    case Kind::Data: return take_data(source, frame, data_at);
    case Kind::Clear: break;
  }
  Peer& peer = peers_[static_cast<std::size_t>(source)];
  const auto cleared = std::ranges::find(peer.offers, frame.id, &Message::id);
  if (cleared == peer.offers.end()) return;
  (*cleared)->state = Message::State::Moving;
  peer.sends.push_back(*cleared);
  peer.offers.erase(cleared);
  queue_up(source);
}

void MessageRings::take_message(int source, const Frame& frame, std::uint64_t data_at) {
  const Peer& peer = peers_[static_cast<std::size_t>(source)];
  Channel& channel = channels_[frame.channel];
  const auto posted = std::ranges::find_if(channel.posted, [&](const Message* each) {
    return each->peer == source && each->tag == frame.tag;
  });
  if (posted == channel.posted.end()) {
    Arrival& arrival = channel.arrivals.emplace_back(Arrival{.source = source, .frame = frame});
    arrival.data.resize(frame.bytes);
    copy_out(peer, data_at, arrival.data.data(), frame.bytes);
    return;
  }
  Message& message = **posted;
  channel.posted.erase(posted);
  if (frame.kind == Kind::Offer) return accept(message, frame);
  message.arriving = frame.bytes;
  if (message.arriving == message.size) copy_out(peer, data_at, message.to, frame.bytes);
  end(message);
}

/// A receive matches an offer. One of another size takes the data, too, and drops them.
void MessageRings::accept(Message& receive, const Frame& offer) {
  Peer& peer = peers_[static_cast<std::size_t>(receive.peer)];
  receive.state = Message::State::Moving;
  receive.id = offer.id;
  receive.arriving = offer.size;
  if (receive.arriving != receive.size) receive.to = nullptr;
  peer.moving.push_back(&receive);
  peer.clears.push_back(frame_of(receive, Kind::Clear));
  queue_up(receive.peer);
}

void MessageRings::take_data(int source, const Frame& frame, std::uint64_t data_at) {
  Peer& peer = peers_[static_cast<std::size_t>(source)];
  const auto found = std::ranges::find(peer.moving, frame.id, &Message::id);
  if (found == peer.moving.end()) return;
  Message& message = **found;
  if (message.to != nullptr) copy_out(peer, data_at, message.to + message.moved, frame.bytes);
  message.moved += frame.bytes;
  if (message.moved < message.arriving) return;
  peer.moving.erase(found);
  end(message);
}

void MessageRings::end(Message& message) {
  message.state = Message::State::Done;
  if (message.is_abandoned) remove(message);
}

void MessageRings::copy_out(const Peer& peer, std::uint64_t at, std::byte* to,
                            std::size_t bytes) const {
  const std::size_t begin = at % layout_.ring_bytes;
  const std::size_t first = std::min(bytes, layout_.ring_bytes - begin);
  if (first > 0) std::memcpy(to, peer.in_bytes + begin, first);
  if (bytes > first) std::memcpy(to + first, peer.in_bytes, bytes - first);
}

// --- to rings ---

MessageRings::Frame MessageRings::frame_of(const Message& message, Kind kind) {
  return {.kind = kind,
          .channel = message.channel,
          .tag = message.tag,
          .id = message.id,
          .size = message.size};
}

/// False: there is no room.
bool MessageRings::put(Peer& peer, Frame frame, std::span<const std::byte> data) {
  const std::size_t needed = kUnit + rounded_up(data.size(), kUnit);
  const auto has_room = [&] {
    return peer.written + needed - peer.known_read <= layout_.ring_bytes;
  };
  if (!has_room()) peer.known_read = peer.out->read.load(std::memory_order_acquire);
  if (!has_room()) return false;
  frame.bytes = static_cast<std::uint32_t>(data.size());
  std::memcpy(peer.out_bytes + peer.written % layout_.ring_bytes, &frame, sizeof frame);
  const std::size_t begin = (peer.written + kUnit) % layout_.ring_bytes;
  const std::size_t first = std::min(data.size(), layout_.ring_bytes - begin);
  std::ranges::copy(data.first(first), peer.out_bytes + begin);
  std::ranges::copy(data.subspan(first), peer.out_bytes);
  peer.written += needed;
  peer.out->written.store(peer.written, std::memory_order_release);
  return true;
}

/// Not only where the bit is missing: that would have to be read after what was put is visible.
void MessageRings::ring_bell(Peer& peer) {
  peer.bell->fetch_or(std::uint64_t{1} << static_cast<std::size_t>(place_) % kBitsPerBell);
}

/// Puts what is first in the queue of sends, or the next data of it; false: there is no room.
bool MessageRings::put_first(Peer& peer) {
  Message& message = *peer.sends.front();
  const std::size_t left = message.size - message.moved;
  if (message.state == Message::State::Moving) {
    const std::size_t bytes = std::min({left, kLongestData, layout_.ring_bytes / 2});
    if (!put(peer, frame_of(message, Kind::Data), {message.from + message.moved, bytes})) {
      return false;
    }
    message.moved += bytes;
    peer.sends.pop_front();
    if (bytes < left) {
      peer.sends.push_back(&message);
    } else {
      end(message);
    }
    return true;
  }
  const bool is_short = message.size <= kLongestWhole;
  const Kind kind = is_short ? Kind::Whole : Kind::Offer;
  if (!put(peer, frame_of(message, kind), {message.from, is_short ? message.size : 0}))
    return false;
  peer.sends.pop_front();
  if (is_short) {
    end(message);
  } else {
    message.state = Message::State::Offered;
    peer.offers.push_back(&message);
  }
  return true;
}

/// Whether nothing is left. Puts no more than a ring holds: while the receiver takes what is put,
/// there would be no end, and other threads wait for the lock.
bool MessageRings::flush(Peer& peer) {
  const std::uint64_t before = peer.written;
  while (!peer.clears.empty() && put(peer, peer.clears.front())) peer.clears.pop_front();
  while (!peer.sends.empty() && peer.written - before < layout_.ring_bytes && put_first(peer)) {
  }
  if (peer.written != before) ring_bell(peer);
  return peer.clears.empty() && peer.sends.empty();
}

void MessageRings::queue_up(int place) {
  if (std::ranges::find(unsent_, place) == unsent_.end()) unsent_.push_back(place);
}

}  // namespace kolo::comm
