#include "runtime/data/point_to_point.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/intentional_leak.hpp"
#include "kolo/error.hpp"

namespace kolo::runtime {
namespace {

constexpr int kHeaderTag = 0;
constexpr int kFirstDataTag = 1;
// With its header below what every transport of MPI sends at once.
constexpr std::size_t kLongestShort = 2048;
constexpr int kMessagesPerStep = 16;

std::string text_of_size(std::uint64_t bytes, std::uint64_t dtype) {
  const auto type = static_cast<DType>(dtype);
  return std::to_string(bytes / size_of(type)) + " elements of " + std::string(name_of(type));
}

}  // namespace

PointToPoint::PointToPoint(const DataPath& path, std::unique_ptr<Communicator> communicator)
    : path_(path), communicator_(std::move(communicator)) {}

/// MPI may still read what nobody has received.
PointToPoint::~PointToPoint() {
  try {
    forget_sent();
  } catch (const BackendError&) {  // the rest leaks
  }
  for (Packet& packet : outgoing_) leak_intentionally(std::move(packet.bytes));
}

// --- what a task waits for ---

/// A posted receive, until it is matched or its task ends.
class PointToPoint::PostedHere {
 public:
  PostedHere(PointToPoint& all, Posted& posted) : all_(all), posted_(posted) { all.post(posted); }
  PostedHere(const PostedHere&) = delete;  // others refer to the receive
  PostedHere& operator=(const PostedHere&) = delete;
  ~PostedHere() {
    std::erase(all_.posted_, &posted_);
    if (posted_.match) all_.offers_matched_.erase(id_of(*posted_.match));
  }

 private:
  PointToPoint& all_;
  Posted& posted_;
};

/// An offer of this rank, until it is answered or its task ends.
class PointToPoint::OfferedHere {
 public:
  OfferedHere(PointToPoint& all, int peer, Answer& answer)
      : all_(all), peer_(peer), id_(++all.offers_) {
    all.offered_[id_] = &answer;
  }
  OfferedHere(const OfferedHere&) = delete;  // the receiver is told once
  OfferedHere& operator=(const OfferedHere&) = delete;
  ~OfferedHere() {
    if (all_.offered_.erase(id_) > 0) all_.tell(peer_, {.kind = Kind::Gone, .id = id_});
  }
  std::uint64_t id() const { return id_; }

 private:
  PointToPoint& all_;
  const int peer_;
  const std::uint64_t id_;
};

struct PointToPoint::Matched {
  PointToPoint& all;
  const Posted& posted;

  bool ready() {
    all.serve();
    if (posted.match) return true;
    all.fail_if_overtaken(posted);
    const MessageMatch& message = posted.operation.message;
    all.fail_if_over(posted.operation,
                     "no message with tag " + std::to_string(message.tag) + " from " +
                         (message.peer < 0 ? "any rank" : all.rank_text(message.peer)) +
                         " has arrived");
    return false;
  }
};

struct PointToPoint::Answered {
  PointToPoint& all;
  const Operation& operation;
  const Answer& answer;

  bool ready() {
    all.serve();
    if (answer) return true;
    all.fail_if_over(operation, all.rank_text(operation.message.peer) +
                                    " has posted no receive for tag " +
                                    std::to_string(operation.message.tag));
    return false;
  }
};

/// All data, or the news that none comes.
struct PointToPoint::Received {
  PointToPoint& all;
  const Posted& posted;
  std::vector<Transfer>& transfers;

  bool ready() {
    all.serve();
    if (posted.gone) return true;
    while (!transfers.empty() && transfers.back().ready()) transfers.pop_back();
    return transfers.empty();
  }
};

// --- the operations ---

Task PointToPoint::send(std::shared_ptr<Operation> operation) {
  operation->started = Operation::Clock::now();
  const TensorType& type = operation->request.tensors.front();
  const int peer = operation->message.peer;
  const std::span<const std::byte> data(operation->tensors.front().input, type.size_bytes());
  Header header{.tag = operation->message.tag,
                .bytes = data.size(),
                .dtype = static_cast<std::uint64_t>(type.dtype)};
  if (data.size() <= kLongestShort) {
    tell(peer, header, data);
    co_return;
  }
  Answer answer;
  {
    const OfferedHere offer(*this, peer, answer);
    header.kind = Kind::Offer;
    header.id = offer.id();
    tell(peer, header);
    co_await Answered{*this, *operation, answer};
  }
  if (answer->kind == Kind::Refuse) {
    throw AgreedFailure{
        {ErrorKind::Mismatch, about(*operation) + rank_text(path_.communicator->rank()) +
                                  " sends " + text_of_size(header.bytes, header.dtype) + ", " +
                                  rank_text(peer) + " receives " +
                                  text_of_size(answer->bytes, answer->dtype) + " with tag " +
                                  std::to_string(header.tag) + ". Send and receive the same."}};
  }
  std::vector<Transfer> transfers;
  for (std::size_t begin = 0; begin < data.size(); begin += Communicator::kMaxMessageBytes) {
    const auto part =
        data.subspan(begin, std::min(Communicator::kMaxMessageBytes, data.size() - begin));
    transfers.push_back(communicator_->send(part, peer, static_cast<int>(answer->tag)));
  }
  for (Transfer& transfer : transfers) co_await transfer;
}

Task PointToPoint::receive(std::shared_ptr<Operation> operation) {
  const std::span<std::byte> data(operation->tensors.front().output,
                                  operation->request.tensors.front().size_bytes());
  Posted posted{*operation, ++receives_};
  const PostedHere here(*this, posted);
  for (;;) {
    co_await Matched{*this, posted};
    posted.gone.reset();
    operation->started = Operation::Clock::now();
    const int sender = posted.match->sender;
    const Header theirs = posted.match->header;
    const bool is_offer = theirs.kind == Kind::Offer;
    check_match(posted, data.size());
    if (is_offer) {
      std::optional<int> tag;
      while (!(tag = free_data_tag(sender))) co_await yield();
      const auto in_use = std::pair(sender, *tag);
      data_tags_.insert(in_use);
      std::vector<Transfer> transfers = receive_data(data, sender, *tag);
      tell(sender, {.kind = Kind::Clear, .id = theirs.id, .tag = *tag});
      co_await Received{*this, posted, transfers};
      data_tags_.erase(in_use);
      if (posted.gone) continue;  // wait for another
    } else if (!data.empty()) {
      std::memcpy(data.data(), posted.match->data.data(), data.size());
    }
    if (operation->message.sender != nullptr) {
      *operation->message.sender = path_.world_rank(sender);
    }
    co_return;
  }
}

void PointToPoint::check_match(const Posted& posted, std::size_t bytes) {
  const Operation& operation = posted.operation;
  const auto& [sender, theirs, data] = *posted.match;
  const Header own{.kind = Kind::Refuse,
                   .id = theirs.id,
                   .bytes = bytes,
                   .dtype = static_cast<std::uint64_t>(operation.request.tensors.front().dtype)};
  if (theirs.bytes == own.bytes && theirs.dtype == own.dtype) return;
  if (theirs.kind == Kind::Offer) tell(sender, own);
  throw AgreedFailure{{ErrorKind::Mismatch,
                       about(operation) + rank_text(path_.communicator->rank()) + " receives " +
                           text_of_size(own.bytes, own.dtype) + ", " + rank_text(sender) +
                           " sends " + text_of_size(theirs.bytes, theirs.dtype) + " with tag " +
                           std::to_string(theirs.tag) + ". Send and receive the same."}};
}

std::vector<Transfer> PointToPoint::receive_data(std::span<std::byte> data, int sender, int tag) {
  std::vector<Transfer> transfers;
  for (std::size_t begin = 0; begin < data.size(); begin += Communicator::kMaxMessageBytes) {
    const auto part =
        data.subspan(begin, std::min(Communicator::kMaxMessageBytes, data.size() - begin));
    transfers.push_back(communicator_->receive(part, sender, tag));
  }
  return transfers;
}

/// Two messages of one sender under one tag could be exchanged for one another.
std::optional<int> PointToPoint::free_data_tag(int sender) const {
  for (int tag = kFirstDataTag; tag < Communicator::kTagCount; ++tag) {
    if (!data_tags_.contains({sender, tag})) return tag;
  }
  return std::nullopt;
}

// --- messages ---

void PointToPoint::tell(int rank, const Header& header, std::span<const std::byte> data) {
  static_assert(std::is_trivially_copyable_v<Header>);
  forget_sent();
  Packet& packet = outgoing_.emplace_back();
  packet.bytes.resize(sizeof(Header) + data.size());
  std::memcpy(packet.bytes.data(), &header, sizeof(Header));
  if (!data.empty()) std::memcpy(packet.bytes.data() + sizeof(Header), data.data(), data.size());
  packet.transfer = communicator_->send(packet.bytes, rank, kHeaderTag);
}

void PointToPoint::forget_sent() {
  std::erase_if(outgoing_, [](Packet& packet) { return packet.transfer.ready(); });
}

void PointToPoint::serve() {
  for (int messages = 0; messages < kMessagesPerStep; ++messages) {
    std::optional<Arrival> next = take_next();
    if (!next) return;
    take(std::move(*next));
  }
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
  if (bytes.size() < sizeof(Header) || header.kind > Kind::Gone || header.dtype >= kDTypeCount ||
      arrival.data.size() != expected) {
    throw BackendError("a message of " + std::to_string(bytes.size()) + " bytes from " +
                       rank_text(sender) + " of process set " + path_.name +
                       " is damaged, or from another version of Kolo");
  }
  incoming_.reset();
  return arrival;
}

void PointToPoint::take(Arrival arrival) {
  const Header& header = arrival.header;
  switch (header.kind) {
    case Kind::Data:
    case Kind::Offer: {
      const auto found = std::ranges::find_if(
          posted_, [&](const Posted* posted) { return is_match(*posted, arrival); });
      if (found == posted_.end()) {
        unexpected_.push_back(std::move(arrival));
      } else {
        match(**found, std::move(arrival));
        posted_.erase(found);
      }
      break;
    }
    case Kind::Clear:
    case Kind::Refuse: {
      const auto found = offered_.find(header.id);
      if (found == offered_.end()) break;  // given up, and the receiver has been told
      *found->second = header;
      offered_.erase(found);
      break;
    }
    case Kind::Gone: {
      std::erase_if(unexpected_, [&](const Arrival& offer) {
        return offer.header.kind == Kind::Offer && offer.sender == arrival.sender &&
               offer.header.id == header.id;
      });
      const auto found = offers_matched_.find(id_of(arrival));
      if (found == offers_matched_.end()) break;
      Posted& posted = *found->second;
      offers_matched_.erase(found);
      posted.match.reset();
      posted.gone = arrival.sender;
      if (!posted.is_overtaken) post(posted);
      break;
    }
  }
}

/// Where it was, if it was posted before: those that were posted later come later.
void PointToPoint::post(Posted& posted) {
  const auto found = std::ranges::find_if(
      unexpected_, [&](const Arrival& arrival) { return is_match(posted, arrival); });
  if (found != unexpected_.end()) {
    match(posted, std::move(*found));
    unexpected_.erase(found);
    return;
  }
  const auto place = [](const Posted* other) { return other->place; };
  posted_.insert(std::ranges::upper_bound(posted_, posted.place, {}, place), &posted);
}

void PointToPoint::match(Posted& posted, Arrival arrival) {
  for (const auto& [offer, other] : offers_matched_) {
    other->is_overtaken |= offer.first == arrival.sender && other->place < posted.place &&
                           other->match->header.tag == arrival.header.tag;
  }
  if (arrival.header.kind == Kind::Offer) offers_matched_[id_of(arrival)] = &posted;
  posted.match = std::move(arrival);
}

PointToPoint::OfferId PointToPoint::id_of(const Arrival& arrival) {
  return {arrival.sender, arrival.header.id};
}

bool PointToPoint::is_match(const Posted& posted, const Arrival& arrival) {
  const MessageMatch& message = posted.operation.message;
  return message.tag == arrival.header.tag && (message.peer < 0 || message.peer == arrival.sender);
}

// --- errors ---

void PointToPoint::fail_if_over(const Operation& operation, const std::string& what) const {
  if (closed_) {
    throw AgreedFailure{{ErrorKind::Shutdown, about(operation) + *closed_ + "; " + what}};
  }
  if (Operation::Clock::now() < operation.deadline) return;
  throw AgreedFailure{
      {ErrorKind::Timeout, about(operation) + what +
                               " in time. Call the other side as well, or raise the timeout "
                               "(KOLO_TIMEOUT, MessageOptions::timeout)."}};
}

/// The next message is for a receive that was posted later, and has it already.
void PointToPoint::fail_if_overtaken(const Posted& posted) const {
  if (!posted.gone || !posted.is_overtaken) return;
  throw AgreedFailure{{ErrorKind::Timeout,
                       about(posted.operation) + rank_text(*posted.gone) +
                           " gave up the message that it takes, after a later receive had taken "
                           "the next. Raise the timeout of the send (KOLO_TIMEOUT, "
                           "MessageOptions::timeout)."}};
}

std::string PointToPoint::about(const Operation& operation) const {
  return describe(operation.request) + " on process set " + path_.name + ": ";
}

std::string PointToPoint::rank_text(int rank) const {
  return "rank " + std::to_string(path_.world_rank(rank));
}

}  // namespace kolo::runtime
