#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
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
#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/operation.hpp"

namespace kolo::runtime {

/// Messages between two ranks of a process set, in host memory: matched by sender and tag, in the
/// order in which they were sent, and independent of all collectives.
///
/// A short message carries its data. A long one is offered first; its receiver clears it once the
/// program has posted a receive for it, and names the tag under which the data moves, from memory
/// to memory. Messages, offers and answers have one tag, so that they arrive in order.
class PointToPoint {
 public:
  /// `path` outlives this object.
  PointToPoint(const DataPath& path, std::unique_ptr<Communicator> communicator);
  ~PointToPoint();

  /// Run operations. Throw AgreedFailure if no other rank has matched them at their deadline or
  /// when the set is closed, and where the two ranks disagree about size or type.
  Task send(std::shared_ptr<Operation> operation);
  Task receive(std::shared_ptr<Operation> operation);

  /// The set is closed; `reason` completes the errors of what is not matched.
  void close(const std::string& reason) { closed_ = reason; }
  bool is_closed() const { return closed_.has_value(); }

  Communicator& communicator() { return *communicator_; }

 private:
  enum class Kind : std::uint64_t {
    Data,    // a message: its data follow the header
    Offer,   // of a long one
    Clear,   // the offer is matched: send the data under `tag`
    Refuse,  // it is matched by a receive of another size or type, which `bytes` and `dtype` say
    Gone,    // the sender gives up its offer
  };
  struct Header {
    Kind kind = Kind::Data;
    std::uint64_t id = 0;  // of an offer, counted by its sender
    std::int64_t tag = 0;  // the program's; Clear: of the data
    std::uint64_t bytes = 0;
    std::uint64_t dtype = 0;
  };
  /// A message or an offer that has arrived.
  struct Arrival {
    int sender = 0;
    Header header{};
    std::vector<std::byte> data{};
  };
  /// A receive that the program has posted.
  struct Posted {
    const Operation& operation;
    std::uint64_t place;  // among all receives, in the order of the calls
    std::optional<Arrival> match{};
    std::optional<int> gone{};  // the sender of a match that was an offer, and is given up
    bool is_overtaken = false;  // a later receive has matched what the sender has sent since
  };
  /// The answer to an offer of this rank.
  using Answer = std::optional<Header>;
  struct Packet {
    std::vector<std::byte> bytes;
    Transfer transfer;
  };
  using OfferId = std::pair<int, std::uint64_t>;  // its sender and number
  class PostedHere;
  class OfferedHere;
  struct Matched;
  struct Answered;
  struct Received;

  void tell(int rank, const Header& header, std::span<const std::byte> data = {});
  void forget_sent();
  void serve();
  std::optional<Arrival> take_next();
  void take(Arrival arrival);
  void post(Posted& posted);
  void match(Posted& posted, Arrival arrival);
  static OfferId id_of(const Arrival& arrival);
  static bool is_match(const Posted& posted, const Arrival& arrival);
  /// Throws AgreedFailure, on the sender of an offer too, if the match has another size or type.
  void check_match(const Posted& posted, std::size_t bytes);
  std::optional<int> free_data_tag(int sender) const;
  std::vector<Transfer> receive_data(std::span<std::byte> data, int sender, int tag);
  /// Throws AgreedFailure if the deadline has passed or the set is closed; `what` has not happened.
  void fail_if_over(const Operation& operation, const std::string& what) const;
  void fail_if_overtaken(const Posted& posted) const;
  std::string about(const Operation& operation) const;
  std::string rank_text(int rank) const;

  const DataPath& path_;
  const std::unique_ptr<Communicator> communicator_;  // before its transfers
  std::list<Packet> outgoing_;
  std::optional<std::pair<int, Packet>> incoming_;  // with its sender
  std::uint64_t offers_ = 0;                        // made so far
  std::map<std::uint64_t, Answer*> offered_;        // by the offer's id, not answered
  std::uint64_t receives_ = 0;                      // posted so far
  std::deque<Posted*> posted_;                      // not matched, in the order of the calls
  std::map<OfferId, Posted*> offers_matched_;
  std::list<Arrival> unexpected_;            // no receive matches them yet
  std::set<std::pair<int, int>> data_tags_;  // in use: sender, tag
  std::optional<std::string> closed_;
};

}  // namespace kolo::runtime
