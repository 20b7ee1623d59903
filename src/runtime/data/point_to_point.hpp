#pragma once

#include <bitset>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kolo/communicator.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"

namespace kolo::runtime {

/// Messages between two ranks of a process set, in host memory: matched by sender and tag, in the
/// order in which they were sent, and independent of all collectives.
///
/// A short message carries its data. A long one is offered first; its receiver clears it once the
/// program has posted a receive for it, and names the tag under which the data move, from memory
/// to memory. Messages, offers and answers have one tag, so that they arrive in order.
///
/// However much waits for other ranks, a step looks once for what has arrived.
///
/// When the set is closed, each rank says to those that it has sent messages which one was the
/// last. Once they have all taken it, nothing that it has sent is on the way any more.
class PointToPoint {
 public:
  using Clock = Operation::Clock;

  /// `set` outlives this object.
  PointToPoint(const SetContext& set, std::unique_ptr<Communicator> communicator);
  ~PointToPoint();

  /// A send or a receive, which begins in the next step; once the set is closed, a receive alone.
  void start(std::shared_ptr<Operation> operation);
  /// One step: takes a few messages that have arrived, and moves data; true if something advanced.
  /// Throws BackendError.
  bool advance(Clock::time_point now);

  /// A send or a receive that has ended, with `error` if it is set.
  struct Ended {
    std::shared_ptr<Operation> operation;
    std::exception_ptr error;
  };
  /// The next one; null: none. It has failed if no other rank has matched it at its deadline or
  /// when the set was closed, or where the two ranks disagree about size or type.
  std::optional<Ended> take_ended();

  /// Whether data that move are overdue: at their deadline, and not within KOLO_LOST_AFTER; true
  /// once per this time.
  bool is_overdue(Clock::time_point now);

  /// The set is closed: this rank begins no more sends. `reason` completes the errors of what is
  /// not matched.
  void close(const std::string& reason);
  bool is_closed() const { return closed_.has_value(); }
  /// Once the set is closed: all that this rank has sent has arrived.
  bool is_delivered() const { return receivers_.empty(); }
  /// Whether data move, of messages that are matched.
  bool is_moving() const { return !moving_.empty(); }
  /// Nothing arrives any more: what is not matched fails, from now on.
  void end() { has_ended_ = true; }

  struct Stopped {
    std::shared_ptr<Operation> operation;
    std::vector<Transfer> transfers;  ///< which use its memory
  };
  /// After a loss: removes and returns what has not ended.
  std::vector<Stopped> stop();

  /// Calls `visit(operation)` for everything that has not ended.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Messages* const messages : {&starting_, &waiting_, &moving_}) {
      for (const Message& message : *messages) visit(*message.operation);
    }
  }

  Communicator& communicator() { return *communicator_; }

 private:
  enum class Kind : std::uint64_t {
    Data,    // a message: its data follow the header
    Offer,   // of a long one
    Clear,   // the offer is matched: send the data under `tag`
    Refuse,  // it is matched by a receive of another size or type, which `bytes` and `dtype` say
    Gone,    // the sender gives up its offer
    Last,    // no more messages and offers of this sender, whose offers that wait are void
    Taken,   // all up to the last one; what was matched has been answered
  };
  struct Header {
    Kind kind = Kind::Data;
    std::uint64_t id = 0;  // of an offer, counted by its sender
    std::int64_t tag = 0;  // the program's; Clear: of the data
    std::uint64_t bytes = 0;
    std::uint64_t dtype = 0;
  };
  struct Arrival {
    int sender = 0;
    Header header{};
    std::vector<std::byte> data{};
  };
  struct Packet {
    std::vector<std::byte> bytes;
    Transfer transfer;
  };

  /// Those of one tag between this rank and a peer are neighbours in a map, in order.
  struct MessageKey {
    std::int64_t tag = 0;
    int peer = 0;
    std::uint64_t number = 0;

    auto operator<=>(const MessageKey&) const = default;
  };

  /// A send or a receive.
  struct Message {
    std::shared_ptr<Operation> operation;
    std::uint64_t number = 0;  // of a send's offer; of a receive, in the order of the calls
    Clock::time_point deadline{};
    Clock::time_point overdue_at{};  ///< or at the deadline, if that is later
    MessageKey offer{};              // the one that a receive has taken: `number` is its id
    bool is_overtaken = false;       // a later receive has matched what the sender has sent since
    int data_tag = 0;                // of the data of a taken offer; 0: none is free yet
    std::vector<Transfer> transfers{};
    std::exception_ptr error{};
  };
  using Messages = std::list<Message>;
  using Position = Messages::iterator;

  static bool is_send(const Message& message) {
    return message.operation->request.collective == Collective::Send;
  }

  // Messages to and from other ranks.
  void tell(int rank, const Header& header, std::span<const std::byte> data = {});
  static void forget_sent(std::list<Packet>& packets);
  bool serve(Clock::time_point now);
  std::optional<Arrival> take_next();
  void take(Arrival arrival);

  void begin();

  // Sends.
  void send(Position message);
  void take_answer(const Header& answer);
  void void_offers_to(int receiver);

  // Receives.
  void post(Position message);
  std::map<MessageKey, Arrival>::iterator find_unexpected(const MessageMatch& wanted);
  void take_message(Arrival arrival);
  void match(Position message, const Arrival& arrival);
  bool clear(Message& message);
  void forget_offer(Message& message);
  void take_back(const Arrival& gone);
  void void_offers_of(int sender);
  void answer_last_ones();

  // Ends.
  bool move_data();
  bool has_moved(Message& message);
  void end_overdue(Clock::time_point now);
  void end_unmatched(Position message, ErrorKind kind);
  void end(Messages& from, Position message, std::optional<Failure> failure = {});

  Header header_of(const Operation& operation) const;
  Failure mismatch(const Message& message, int peer, const Header& theirs) const;
  std::string what_is_missing(const Operation& operation) const;
  std::string about(const Operation& operation) const;

  const SetContext& set_;
  const std::unique_ptr<Communicator> communicator_;  // before its transfers
  std::map<int, std::list<Packet>> outgoing_;         // by receiver
  std::optional<std::pair<int, Packet>> incoming_;    // with its sender
  Clock::time_point next_look_{};                     // for messages that nothing waits for

  Messages starting_;
  Messages waiting_;  // sends for an answer, receives for a message
  Messages moving_;   // their data
  Messages ended_;
  Clock::time_point next_deadline_ = Clock::time_point::max();  // of `waiting_`, or before

  std::uint64_t offers_ = 0;                   // made so far
  std::map<std::uint64_t, Position> offered_;  // by the offer's id, not answered
  std::uint64_t receives_ = 0;                 // posted so far
  std::map<MessageKey, Position> posted_;      // not matched
  std::map<MessageKey, Position> taken_;       // by the offer
  std::uint64_t arrivals_ = 0;                 // unexpected ones so far
  std::map<MessageKey, Arrival> unexpected_;   // no receive matches them yet
  std::map<int, std::bitset<Communicator::kTagCount>> data_tags_;  // in use, by sender

  std::set<int> receivers_;  // have not taken the last message
  std::set<int> leaving_;    // have sent their last one, and not been answered
  std::optional<std::string> closed_;
  bool has_ended_ = false;
};

}  // namespace kolo::runtime
