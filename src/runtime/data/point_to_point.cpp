#include "runtime/data/point_to_point.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "kolo/error.hpp"

namespace kolo::runtime {
namespace {

constexpr int kHeaderTag = 0;
constexpr int kFirstDataTag = 1;
constexpr int kFromAny = -1;
// With its header below what every transport of MPI sends at once.
constexpr std::size_t kLongestShort = 2048;
constexpr int kPerStep = 16;
// MPI searches all messages that have arrived and not been received, those of other sets too.
constexpr std::chrono::milliseconds kBetweenIdleLooks{1};

std::string text_of_size(std::uint64_t bytes, std::uint64_t dtype) {
  const auto type = static_cast<DType>(dtype);
  return std::to_string(bytes / size_of(type)) + " elements of " + std::string(name_of(type));
}

/// The range of those of a tag and a peer, in order.
template <class Map>
auto all_of(Map& map, std::int64_t tag, int peer) {
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  return std::pair(map.lower_bound({tag, peer, 0}), map.upper_bound({tag, peer, kLast}));
}

template <class Map>
auto first_of(Map& map, std::int64_t tag, int peer) {
  const auto [first, last] = all_of(map, tag, peer);
  return first == last ? map.end() : first;
}

/// Begins the transfers of long data, in segments.
template <class Data, class Begin>
std::vector<Transfer> in_segments(std::span<Data> data, const Begin& begin_transfer) {
  std::vector<Transfer> transfers;
  for (std::size_t begin = 0; begin < data.size(); begin += Communicator::kMaxMessageBytes) {
    transfers.push_back(begin_transfer(
        data.subspan(begin, std::min(Communicator::kMaxMessageBytes, data.size() - begin))));
  }
  return transfers;
}

}  // namespace

PointToPoint::PointToPoint(const SetContext& set, std::unique_ptr<Communicator> communicator)
    : set_(set), communicator_(std::move(communicator)) {}

/// After a loss MPI may still read what nobody has received.
PointToPoint::~PointToPoint() {
  for (auto& [rank, packets] : outgoing_) {
    try {
      forget_sent(packets);
    } catch (const BackendError&) {  // the rest leaks
    }
    for (Packet& packet : packets) leak_intentionally(std::move(packet.bytes));
  }
}

void PointToPoint::start(std::shared_ptr<Operation> operation) {
  const Clock::time_point deadline = operation->deadline;
  starting_.push_back({.operation = std::move(operation), .deadline = deadline});
}

void PointToPoint::begin() {
  while (!starting_.empty()) {
    const Position message = starting_.begin();
    waiting_.splice(waiting_.end(), starting_, message);
    next_deadline_ = std::min(next_deadline_, message->deadline);
    if (is_send(*message)) {
      send(message);
    } else {
      message->number = ++receives_;
      post(message);
    }
  }
}

bool PointToPoint::advance(Clock::time_point now) {
  begin();
  const bool is_time = now >= next_look_;
  if (is_time) {
    next_look_ = now + kBetweenIdleLooks;
    for (auto& [rank, packets] : outgoing_) forget_sent(packets);
    std::erase_if(outgoing_, [](const auto& sent) { return sent.second.empty(); });
  }
  const bool expects_messages = !waiting_.empty() || !moving_.empty() || closed_;
  bool has_progressed = (is_time || expects_messages) && serve(now);
  has_progressed |= move_data();
  if (!leaving_.empty()) answer_last_ones();
  if (now >= next_deadline_) end_overdue(now);
  while (has_ended_ && !waiting_.empty()) end_unmatched(waiting_.begin(), ErrorKind::Shutdown);
  return has_progressed || !ended_.empty();
}

// --- messages ---

void PointToPoint::tell(int rank, const Header& header, std::span<const std::byte> data) {
  static_assert(std::is_trivially_copyable_v<Header>);
  Packet& packet = outgoing_[rank].emplace_back();
  packet.bytes.resize(sizeof(Header) + data.size());
  std::memcpy(packet.bytes.data(), &header, sizeof(Header));
  if (!data.empty()) std::memcpy(packet.bytes.data() + sizeof(Header), data.data(), data.size());
  packet.transfer = communicator_->send(packet.bytes, rank, kHeaderTag);
}

/// In order: where a rank receives nothing, only the first of its messages is tested.
void PointToPoint::forget_sent(std::list<Packet>& packets) {
  while (!packets.empty() && packets.front().transfer.ready()) packets.pop_front();
}

bool PointToPoint::serve(Clock::time_point now) {
  for (int messages = 0; messages < kPerStep; ++messages) {
    std::optional<Arrival> next = take_next();
    if (!next) return messages > 0;
    take(std::move(*next));
  }
  next_look_ = now;  // there may be more
  return true;
}

std::optional<PointToPoint::Arrival> PointToPoint::take_next() {
  if (!incoming_) {
    const auto envelope = communicator_->probe(kHeaderTag);
    if (!envelope) return std::nullopt;
    incoming_.emplace(envelope->source, Packet{});
    Packet& packet = incoming_->second;
    packet.bytes.resize(envelope->size_bytes);
    packet.transfer = communicator_->receive(packet.bytes, envelope->source, kHeaderTag);
  }
  auto& [sender, packet] = *incoming_;
  if (!packet.transfer.ready()) return std::nullopt;
  Arrival arrival{.sender = sender};
  const std::vector<std::byte>& bytes = packet.bytes;
  if (bytes.size() >= sizeof(Header)) {
    std::memcpy(&arrival.header, bytes.data(), sizeof(Header));
    arrival.data.assign(bytes.begin() + sizeof(Header), bytes.end());
  }
  const Header& header = arrival.header;
  const std::size_t expected = header.kind == Kind::Data ? header.bytes : 0;
  if (bytes.size() < sizeof(Header) || header.kind > Kind::Taken || header.dtype >= kDTypeCount ||
      arrival.data.size() != expected || (header.kind == Kind::Taken && !closed_)) {
    throw BackendError("a message of " + std::to_string(bytes.size()) + " bytes from " +
                       set_.rank_text(sender) + " of process set " + set_.name +
                       " is damaged, or from another version of Kolo");
  }
  incoming_.reset();
  return arrival;
}

void PointToPoint::take(Arrival arrival) {
  switch (arrival.header.kind) {
    case Kind::Data:
    case Kind::Offer: take_message(std::move(arrival)); break;
    case Kind::Clear:
    case Kind::Refuse: take_answer(arrival.header); break;
    case Kind::Gone: take_back(arrival); break;
    case Kind::Last: void_offers_of(arrival.sender); break;
    case Kind::Taken: void_offers_to(arrival.sender); break;
  }
}

// --- sends ---

void PointToPoint::send(Position message) {
  Operation& operation = *message->operation;
  operation.started = Clock::now();
  const int peer = operation.message.peer;
  receivers_.insert(peer);
  Header header = header_of(operation);
  if (header.bytes <= kLongestShort) {
    tell(peer, header, {operation.tensors.front().input, header.bytes});
    end(waiting_, message);
    return;
  }
  header.kind = Kind::Offer;
  header.id = message->number = ++offers_;
  offered_[header.id] = message;
  tell(peer, header);
}

void PointToPoint::take_answer(const Header& answer) {
  const auto found = offered_.find(answer.id);
  if (found == offered_.end()) return;  // given up, and the receiver has been told
  const Position message = found->second;
  offered_.erase(found);
  const Operation& operation = *message->operation;
  const int peer = operation.message.peer;
  if (answer.kind == Kind::Refuse) {
    end(waiting_, message, mismatch(*message, peer, answer));
    return;
  }
  const std::span data(operation.tensors.front().input, header_of(operation).bytes);
  message->transfers = in_segments(data, [&](std::span<const std::byte> segment) {
    return communicator_->send(segment, peer, static_cast<int>(answer.tag));
  });
  message->overdue_at = later(Clock::now(), set_.longest_silence());
  moving_.splice(moving_.end(), waiting_, message);
}

/// The receiver has taken the last message, and had answered what it had matched.
void PointToPoint::void_offers_to(int receiver) {
  receivers_.erase(receiver);
  for (auto next = offered_.begin(); next != offered_.end();) {
    const Position message = (next++)->second;
    if (message->operation->message.peer == receiver) end_unmatched(message, ErrorKind::Shutdown);
  }
}

// --- receives ---

/// Where it was, if it was posted before: those that were posted later come later.
void PointToPoint::post(Position message) {
  const MessageMatch& wanted = message->operation->message;
  const auto found = find_unexpected(wanted);
  if (found == unexpected_.end()) {
    posted_[{wanted.tag, wanted.peer, message->number}] = message;
    return;
  }
  Arrival arrival = std::move(found->second);
  unexpected_.erase(found);
  match(message, arrival);
}

/// The first message or offer for such a receive.
std::map<PointToPoint::MessageKey, PointToPoint::Arrival>::iterator PointToPoint::find_unexpected(
    const MessageMatch& wanted) {
  if (wanted.peer != kFromAny) return first_of(unexpected_, wanted.tag, wanted.peer);
  auto first = unexpected_.end();
  for (auto each = unexpected_.lower_bound({wanted.tag, 0, 0});
       each != unexpected_.end() && each->first.tag == wanted.tag;
       each = unexpected_.lower_bound({wanted.tag, each->first.peer + 1, 0})) {
    if (first == unexpected_.end() || each->first.number < first->first.number) first = each;
  }
  return first;
}

void PointToPoint::take_message(Arrival arrival) {
  const std::int64_t tag = arrival.header.tag;
  auto found = first_of(posted_, tag, arrival.sender);
  const auto from_any = first_of(posted_, tag, kFromAny);
  if (found == posted_.end() ||
      (from_any != posted_.end() && from_any->first.number < found->first.number)) {
    found = from_any;
  }
  if (found == posted_.end()) {
    unexpected_[{tag, arrival.sender, ++arrivals_}] = std::move(arrival);
    return;
  }
  const Position message = found->second;
  posted_.erase(found);
  match(message, arrival);
}

void PointToPoint::match(Position message, const Arrival& arrival) {
  const auto& [sender, header, data] = arrival;
  for (auto [other, last] = all_of(taken_, header.tag, sender); other != last; ++other) {
    other->second->is_overtaken |= other->second->number < message->number;
  }
  Operation& operation = *message->operation;
  operation.started = Clock::now();
  const bool is_offer = header.kind == Kind::Offer;
  Header own = header_of(operation);
  if (header.bytes != own.bytes || header.dtype != own.dtype) {
    own.kind = Kind::Refuse;
    own.id = header.id;
    if (is_offer) tell(sender, own);
    end(waiting_, message, mismatch(*message, sender, header));
    return;
  }
  if (operation.message.sender != nullptr) *operation.message.sender = set_.world_rank(sender);
  if (is_offer) {
    message->offer = {header.tag, sender, header.id};
    taken_[message->offer] = message;
    message->overdue_at = later(Clock::now(), set_.longest_silence());
    moving_.splice(moving_.end(), waiting_, message);
    clear(*message);
    return;
  }
  if (!data.empty()) std::memcpy(operation.tensors.front().output, data.data(), data.size());
  end(waiting_, message);
}

/// Asks for the data of a taken offer; false while no tag is free. Two messages of one sender under
/// one tag could be exchanged for one another.
bool PointToPoint::clear(Message& message) {
  const int sender = message.offer.peer;
  auto& in_use = data_tags_[sender];
  int tag = kFirstDataTag;
  while (tag < Communicator::kTagCount && in_use.test(static_cast<std::size_t>(tag))) ++tag;
  if (tag == Communicator::kTagCount) return false;
  in_use.set(static_cast<std::size_t>(tag));
  message.data_tag = tag;
  const Operation& operation = *message.operation;
  const std::span data(operation.tensors.front().output, header_of(operation).bytes);
  message.transfers = in_segments(data, [&](std::span<std::byte> segment) {
    return communicator_->receive(segment, sender, tag);
  });
  tell(sender, {.kind = Kind::Clear, .id = message.offer.number, .tag = tag});
  return true;
}

/// Its data have arrived, or will not.
void PointToPoint::forget_offer(Message& message) {
  taken_.erase(message.offer);
  data_tags_[message.offer.peer].reset(static_cast<std::size_t>(message.data_tag));
  message.data_tag = 0;
  message.transfers.clear();
}

/// The sender gives up an offer.
void PointToPoint::take_back(const Arrival& gone) {
  const auto& [sender, header, data] = gone;
  const auto [first, last] = all_of(unexpected_, header.tag, sender);
  const auto offer = std::find_if(first, last, [id = header.id](const auto& arrived) {
    const Header& other = arrived.second.header;
    return other.kind == Kind::Offer && other.id == id;
  });
  if (offer != last) unexpected_.erase(offer);
  const auto found = taken_.find({header.tag, sender, header.id});
  if (found == taken_.end()) return;
  const Position message = found->second;
  forget_offer(*message);
  if (!message->is_overtaken) {
    waiting_.splice(waiting_.end(), moving_, message);
    next_deadline_ = std::min(next_deadline_, message->deadline);
    post(message);
    return;
  }
  // The next message is for a receive that was posted later, and has it already.
  end(moving_, message,
      Failure{ErrorKind::Timeout,
              about(*message->operation) + set_.rank_text(sender) +
                  " gave up the message that it takes, after a later receive had taken the next. "
                  "Raise the timeout of the send (KOLO_TIMEOUT, MessageOptions::timeout)."});
}

void PointToPoint::void_offers_of(int sender) {
  std::erase_if(unexpected_, [&](const auto& arrived) {
    const auto& [place, arrival] = arrived;
    return place.peer == sender && arrival.header.kind == Kind::Offer;
  });
  leaving_.insert(sender);
}

/// Once what this rank has matched is answered.
void PointToPoint::answer_last_ones() {
  std::erase_if(leaving_, [&](int sender) {
    const bool is_answered = std::ranges::none_of(moving_, [&](const Message& message) {
      return !is_send(message) && message.offer.peer == sender && message.data_tag == 0;
    });
    if (is_answered) tell(sender, {.kind = Kind::Taken});
    return is_answered;
  });
}

// --- ends ---

bool PointToPoint::move_data() {
  bool has_progressed = false;
  for (std::size_t left = std::min<std::size_t>(moving_.size(), kPerStep); left > 0; --left) {
    const Position message = moving_.begin();
    moving_.splice(moving_.end(), moving_, message);
    if (!has_moved(*message)) continue;
    if (!is_send(*message)) forget_offer(*message);
    end(moving_, message);
    has_progressed = true;
  }
  return has_progressed;
}

bool PointToPoint::has_moved(Message& message) {
  if (!is_send(message) && message.data_tag == 0 && !clear(message)) return false;
  std::vector<Transfer>& transfers = message.transfers;
  while (!transfers.empty() && transfers.back().ready()) transfers.pop_back();
  return transfers.empty();
}

bool PointToPoint::is_overdue(Clock::time_point now) {
  bool is_overdue = false;
  for (Message& message : moving_) {
    if (now <= std::max(message.deadline, message.overdue_at)) continue;
    message.overdue_at = later(now, set_.longest_silence());
    is_overdue = true;
  }
  return is_overdue;
}

void PointToPoint::end_overdue(Clock::time_point now) {
  next_deadline_ = Clock::time_point::max();
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const Position message = next++;
    if (now < message->deadline) {
      next_deadline_ = std::min(next_deadline_, message->deadline);
      continue;
    }
    const MessageMatch& match = message->operation->message;
    if (is_send(*message)) {
      tell(match.peer, {.kind = Kind::Gone, .id = message->number, .tag = match.tag});
    }
    end_unmatched(message, ErrorKind::Timeout);
  }
}

void PointToPoint::end_unmatched(Position message, ErrorKind kind) {
  const Operation& operation = *message->operation;
  if (is_send(*message)) {
    offered_.erase(message->number);
  } else {
    posted_.erase({operation.message.tag, operation.message.peer, message->number});
  }
  const std::string what = what_is_missing(operation);
  end(waiting_, message,
      Failure{kind, about(operation) +
                        (kind == ErrorKind::Shutdown
                             ? *closed_ + "; " + what
                             : what + " in time. Call the other side as well, or raise the timeout "
                                      "(KOLO_TIMEOUT, MessageOptions::timeout).")});
}

void PointToPoint::end(Messages& from, Position message, std::optional<Failure> failure) {
  if (failure) message->error = to_exception(*failure);
  ended_.splice(ended_.end(), from, message);
}

std::optional<PointToPoint::Ended> PointToPoint::take_ended() {
  if (ended_.empty()) return std::nullopt;
  Ended first{std::move(ended_.front().operation), std::move(ended_.front().error)};
  ended_.pop_front();
  return first;
}

void PointToPoint::close(const std::string& reason) {
  begin();
  closed_ = reason;
  for (const int rank : receivers_) tell(rank, {.kind = Kind::Last});
}

std::vector<PointToPoint::Stopped> PointToPoint::stop() {
  std::vector<Stopped> stopped;
  for (Messages* const messages : {&starting_, &waiting_, &moving_, &ended_}) {
    for (Message& message : *messages) {
      stopped.push_back({std::move(message.operation), std::move(message.transfers)});
    }
    messages->clear();
  }
  offered_.clear();
  posted_.clear();
  taken_.clear();
  return stopped;
}

// --- texts ---

PointToPoint::Header PointToPoint::header_of(const Operation& operation) const {
  const TensorType& type = operation.request.tensors.front();
  return {.tag = operation.message.tag,
          .bytes = type.size_bytes(),
          .dtype = static_cast<std::uint64_t>(type.dtype)};
}

Failure PointToPoint::mismatch(const Message& message, int peer, const Header& theirs) const {
  const Operation& operation = *message.operation;
  const Header own = header_of(operation);
  const bool sends = is_send(message);
  return {ErrorKind::Mismatch, about(operation) + set_.rank_text(communicator_->rank()) +
                                   (sends ? " sends " : " receives ") +
                                   text_of_size(own.bytes, own.dtype) + ", " +
                                   set_.rank_text(peer) + (sends ? " receives " : " sends ") +
                                   text_of_size(theirs.bytes, theirs.dtype) + " with tag " +
                                   std::to_string(own.tag) + ". Send and receive the same."};
}

std::string PointToPoint::what_is_missing(const Operation& operation) const {
  const auto& [peer, tag, sender] = operation.message;
  const std::string rank = peer == kFromAny ? "any rank" : set_.rank_text(peer);
  const std::string with_tag = "tag " + std::to_string(tag);
  return operation.request.collective == Collective::Send
             ? rank + " has posted no receive for " + with_tag
             : "no message with " + with_tag + " from " + rank + " has arrived";
}

std::string PointToPoint::about(const Operation& operation) const {
  return describe(operation.request) + " on process set " + set_.name + ": ";
}

}  // namespace kolo::runtime
