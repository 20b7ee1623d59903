#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "comm/shared_memory.hpp"
#include "kolo/communicator.hpp"

namespace kolo::comm {

/// Messages among ranks that share memory, without MPI: a ring of bytes from every rank to every
/// rank, in a segment of the receiver.
///
/// A short message travels in one frame. A long one is offered, and its data follow once a receive
/// matches the offer, cut into frames between which others pass: nothing is stored but what no
/// receive has matched, and a long message delays no short one. Nobody but the two processes
/// touches a ring, and a process copies only between rings and its own memory, so a death leaves
/// nothing locked, and no peer writes to a buffer that was given up.
///
/// Messages move whenever a rank sends, tests or probes. Any thread may call.
class MessageRings {
 public:
  /// Makes the segment of one of `size` ranks. Throws BackendError.
  explicit MessageRings(int size);
  MessageRings(const MessageRings&) = delete;  // communicators refer to it
  MessageRings& operator=(const MessageRings&) = delete;
  ~MessageRings();

  /// Of this rank's segment. Others can map it until `close_file`.
  const SegmentAddress& address() const { return segment_.address; }
  void close_file() { segment_.file = FileDescriptor(); }
  /// Maps the segments of `ranks`, which are all of this host, ascending; `rank` is among them.
  /// Throws BackendError.
  void connect(int rank, std::vector<int> ranks, std::span<const SegmentAddress> segments);

  /// Moves messages.
  void progress() {
    const Lock lock(lock_);
    make_progress();
  }
  /// From now on `move` is called whenever messages here make progress: a rank that waits for a
  /// neighbour moves messages to other hosts meanwhile.
  void move_also(std::function<void()> move) {
    const Lock lock(lock_);
    move_others_ = std::move(move);
  }

  /// See World; all of `ranks` are on this host. This object outlives the communicator.
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks, int channel);

 private:
  class RingCommunicator;

  enum class Kind : std::uint32_t {
    Whole,  // a short message
    Offer,  // of a long one
    Clear,  // the offer is matched: send the data
    Data,   // the next of a long message
  };
  /// What the bytes in a ring begin with, followed by `bytes` of data.
  struct Frame {
    Kind kind = Kind::Whole;
    std::uint32_t bytes = 0;
    std::int32_t channel = 0;
    std::int32_t tag = 0;
    std::uint64_t id = 0;  // of a long message, counted by its sender
    std::uint64_t size = 0;
  };
  /// Frames begin at its multiples, so that none is cut by the end of the ring.
  static constexpr std::size_t kUnit = sizeof(Frame);

  using Bell = std::atomic<std::uint64_t>;  // a bit for each rank that has written

  /// Positions only grow; a byte lies at its position modulo the ring's size.
  struct Ring {
    alignas(64) std::atomic<std::uint64_t> written;  // by the sender
    alignas(64) std::atomic<std::uint64_t> read;     // by the receiver
  };

  /// Of a segment, behind its first page: bells, a Ring for each sender, the bytes of each.
  struct Layout {
    explicit Layout(std::size_t ranks);

    std::size_t size;
    std::size_t ring_bytes;
    std::size_t bells;
    std::size_t rings_at;
    std::size_t bytes_at;
  };

  /// A send or a receive.
  struct Message {
    enum class State { Queued, Offered, Posted, Moving, Done };

    State state = State::Queued;
    bool is_receive = false;
    bool is_abandoned = false;  // nobody tests it any more
    int channel = 0;
    int tag = 0;
    int peer = 0;                     // place among the ranks
    const std::byte* from = nullptr;  // of a send
    std::byte* to = nullptr;          // of a receive; null: what arrives is dropped
    std::size_t size = 0;
    std::size_t moved = 0;
    std::size_t arriving = 0;  // the size that the sender says
    std::uint64_t id = 0;      // of a long message
    std::uint64_t token = 0;   // its place in `messages_`
  };

  struct Peer {
    Ring* out = nullptr;  // in its segment
    std::byte* out_bytes = nullptr;
    Bell* bell = nullptr;  // the one with this rank's bit, there
    Ring* in = nullptr;
    const std::byte* in_bytes = nullptr;
    std::uint64_t written = 0;     // to `out`
    std::uint64_t known_read = 0;  // of `out`: at least so much
    std::uint64_t read = 0;        // of `in`

    std::deque<Frame> clears;      // for which there was no room yet
    std::deque<Message*> sends;    // the same; data of long ones take turns
    std::vector<Message*> offers;  // sends that wait for their Clear
    std::vector<Message*> moving;  // receives of long messages
  };

  /// A message or an offer that no receive has matched.
  struct Arrival {
    int source = 0;
    Frame frame{};
    std::vector<std::byte> data{};
  };
  /// Outlives its communicators: the next of this number may have been made on another rank.
  struct Channel {
    std::vector<Message*> posted{};
    std::deque<Arrival> arrivals{};
  };

  // Calls of communicators.
  Message* send(Message message) KOLO_REQUIRES(lock_);
  Message* receive(Message message) KOLO_REQUIRES(lock_);
  void abandon(Message& message) KOLO_REQUIRES(lock_);
  Message* add(const Message& message) KOLO_REQUIRES(lock_);
  void remove(Message& message) KOLO_REQUIRES(lock_);

  // From rings.
  void make_progress() KOLO_REQUIRES(lock_);
  void take_frames(int source) KOLO_REQUIRES(lock_);
  void take(int source, const Frame& frame, std::uint64_t data_at) KOLO_REQUIRES(lock_);
  void take_message(int source, const Frame& frame, std::uint64_t data_at) KOLO_REQUIRES(lock_);
  void take_data(int source, const Frame& frame, std::uint64_t data_at) KOLO_REQUIRES(lock_);
  void accept(Message& receive, const Frame& offer) KOLO_REQUIRES(lock_);
  void end(Message& message) KOLO_REQUIRES(lock_);
  void copy_out(const Peer& peer, std::uint64_t at, std::byte* to, std::size_t bytes) const;

  // To rings.
  bool put(Peer& peer, Frame frame, std::span<const std::byte> data = {});
  void ring_bell(Peer& peer);
  bool put_first(Peer& peer) KOLO_REQUIRES(lock_);
  bool flush(Peer& peer) KOLO_REQUIRES(lock_);
  void queue_up(int place) KOLO_REQUIRES(lock_);
  static Frame frame_of(const Message& message, Kind kind);
  int place_of(int rank) const;

  const Layout layout_;
  NewSegment segment_;
  std::vector<int> ranks_;  // of the world; all else knows their places here
  int place_ = 0;           // of this one
  std::vector<Mapping> mappings_;
  std::span<Bell> bells_;

  Mutex lock_;
  std::vector<Peer> peers_;  // their messages: under the lock
  std::map<int, Channel> channels_ KOLO_GUARDED_BY(lock_);
  std::vector<int> unsent_ KOLO_GUARDED_BY(lock_);            // peers with queues
  std::deque<Message> messages_ KOLO_GUARDED_BY(lock_);       // which pointers refer to
  std::vector<std::uint64_t> unused_ KOLO_GUARDED_BY(lock_);  // tokens
  std::uint64_t last_id_ KOLO_GUARDED_BY(lock_) = 0;
  std::function<void()> move_others_ KOLO_GUARDED_BY(lock_);
};

}  // namespace kolo::comm
