#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kolo/communicator.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_window.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// What a rank runs as one of the operations of its process set: enough to compare, and to name it
/// in a text. A value of zeros stands for none.
struct Stamp {
  enum class Kind : std::uint8_t {
    Operation,
    Left,     ///< the rank runs no more operations, from this one on
    GivenUp,  ///< the set has ended before this one has
  };

  std::uint64_t sequence;  ///< 1, 2, …
  std::uint64_t hash;      ///< of all that ranks must agree on, in it and in those before
  std::uint64_t elements;  ///< of all tensors; of rows without number: of a row of each
  std::int32_t root;
  Kind kind;
  Collective collective;
  ReduceOp op;
  DType dtype;
  /// Where the memory lies that others access in its rank's SharedHeap; differs between ranks.
  std::uint64_t place;

  static constexpr std::uint64_t kNowhere = static_cast<std::uint64_t>(-1);

  bool agrees_with(Stamp other) const {
    other.place = place;
    return *this == other;
  }
  bool operator==(const Stamp&) const = default;
};

/// Ranks run different operations, or one of them runs none any more. `rank` counts within the set;
/// `how` completes "rank 3 ".
struct OrderBroken {
  ErrorKind kind;
  int rank;
  std::string how;
};

/// The communicator for the data of a set whose operations are matched by order: every rank runs
/// what it submits, and tells the others what that is without waiting for them.
///
/// The first message of an operation to each rank is preceded by a Stamp, and where ranks share
/// memory each shows its latest stamps to all. So a rank reads the stamps of those on whose data it
/// waits. It waits for a stamp alone only before it would overwrite one of its own that it has not
/// compared: a stamp that is gone was compared by the rank that showed it.
///
/// No rank passes on data of a rank whose stamp differs, so whoever ends an operation has a result
/// of ranks that agree: a receive is ready once its sender's stamp has been compared, and a send
/// begins by comparing those that are shown in shared memory. Once a stamp has differed, no
/// transfer gets ready.
class OrderedCommunicator final : public Communicator {
 public:
  /// Bytes needed at the beginning of every segment of `board`.
  static std::size_t board_bytes();

  /// @param board null: the ranks share no memory
  /// @param sharers those of `board`, in its order
  OrderedCommunicator(std::unique_ptr<Communicator> inner, std::vector<int> world_ranks,
                      std::shared_ptr<SharedWindow> board, std::vector<int> sharers);
  ~OrderedCommunicator() override;

  /// Awaitable: this rank may begin an operation, and leave after it.
  struct Room {
    OrderedCommunicator& communicator;
    bool ready() { return communicator.has_room(); }
  };
  Room room() { return {*this}; }
  /// Then: from now on messages belong to this operation. `place`: see Stamp.
  void begin(const Request& request, std::uint64_t place = Stamp::kNowhere);
  /// This rank runs no more operations. Tells all others.
  void leave();
  /// All ranks have left. Receives what they have told, which MPI would keep otherwise.
  void end();
  /// The set has ended. A rank that shares memory could otherwise end the operation later, with
  /// what this rank has left there.
  void give_up();

  /// Awaitable: the stamps of the ranks from which this rank has received agree with its own.
  /// Throws OrderBroken if a stamp that has arrived does not.
  struct Agreement {
    OrderedCommunicator& communicator;
    bool ready() { return communicator.compare(); }
  };
  Agreement agreement() { return {*this}; }
  /// Awaitable: all ranks that share memory have begun the operation, or a later one.
  struct Begun {
    OrderedCommunicator& communicator;
    bool ready() { return communicator.have_sharers_begun(); }
  };
  Begun all_sharers_begun() { return {*this}; }
  /// Then: the places that they have shown, in the order of the board; none if one is nowhere.
  std::optional<std::vector<std::uint64_t>> places() const;

  /// Throws OrderBroken if a stamp that has arrived differs.
  void check() { compare(); }
  /// From now on also listens to ranks from which an operation receives nothing: some have left.
  void listen_to_all() { listens_to_all_ = true; }
  /// The ranks that have not begun the operation, as far as this rank can tell.
  std::vector<int> not_begun();
  /// "operation 12 of this rank in the set".
  std::string place() const;

  /// As the world has made it, to make windows over.
  Communicator& inner() { return *inner_; }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Transfer send(std::span<const std::byte> data, int destination, int tag) override;
  Transfer receive(std::span<std::byte> data, int source, int tag) override;
  std::optional<Envelope> probe(int tag) override { return inner_->probe(tag); }
  UnderWay give_up_receives() override { return inner_->give_up_receives(); }
  int awaited() const override { return inner_->awaited(); }

 private:
  struct Slot;
  struct Sent {
    std::unique_ptr<Stamp> stamp;
    Transfer transfer;
  };
  struct Peer {
    std::uint64_t told = 0;            // the sequence of the last stamp that was sent to it
    std::uint64_t awaited = 0;         // of the last operation that received from it
    std::uint64_t heard = 0;           // of the last of its stamps that was compared
    std::optional<Stamp> incoming;     // has arrived, and is not compared yet
    Stamp buffer{};                    // of the next
    std::optional<Transfer> transfer;  // of that
  };

  static constexpr std::uint64_t kNever = static_cast<std::uint64_t>(-1);  // a send without effect
  /// A receive whose sender has not been heard in its operation yet.
  struct Unheard {
    int source = 0;
    Transfer transfer{};
    std::exception_ptr error{};  // of the transfer
  };

  // All other transfers are those of `inner_`.
  bool test(std::uint64_t token) override;
  void abandon(std::uint64_t token) noexcept override;

  void show(const Stamp& stamp);
  void forget_sent();
  void tell(int rank);
  Transfer receive_stamp(int rank);
  void listen_to(int rank);
  bool has_room();
  bool compare();
  bool hear(int rank);
  bool hear_sharers();
  template <class Compare>
  bool is_sound(Compare compare);
  bool has_stamp_of(int rank);
  bool remembers(const Stamp& other) const;
  void compare(int rank, const Stamp& other) const;
  [[noreturn]] void went_on(int rank, const Stamp& other) const;
  std::string rank_text(int rank) const;
  bool has_shown(std::size_t sharer, std::uint64_t sequence) const;
  std::optional<Stamp> shown_by(std::size_t sharer, std::uint64_t sequence) const;
  bool have_sharers_begun();
  Slot* slots(std::size_t sharer) const;
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // Of the latest operations; one is for leave(). An algorithm in shared memory begins once all
  // ranks have ended the one before, so only ranks that await nothing get farther ahead.
  static constexpr std::size_t kRemembered = 4;

  const std::unique_ptr<Communicator> inner_;  // the first member: transfers refer to it
  const std::vector<int> world_ranks_;
  const std::shared_ptr<SharedWindow> board_;
  const std::vector<int> sharers_;
  std::array<Stamp, kRemembered> own_{};  // by sequence % kRemembered
  Stamp now_{};
  std::vector<Peer> peers_;
  std::vector<int> awaited_;  // peers from which the operation receives
  bool listens_to_all_ = false;
  std::vector<std::uint64_t> compared_;  // up to which operation of each sharer
  std::deque<Sent> sent_;
  std::vector<Unheard> unheard_;  // by token
  std::vector<std::uint64_t> free_tokens_;
  std::optional<OrderBroken> broken_;  // found by a transfer
};

}  // namespace kolo::runtime
