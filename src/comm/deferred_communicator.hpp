#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "kolo/communicator.hpp"

namespace kolo::comm {

class DeferredCommunicator;

/// The only thread that may call the communication library, if that is not thread-safe
/// (MPI_THREAD_FUNNELED). Messages of other threads wait until this thread is inside Kolo and
/// serves them.
class MessagingThread {
 public:
  /// The calling thread.
  MessagingThread() : id_(std::this_thread::get_id()) {}
  MessagingThread(const MessagingThread&) = delete;  // communicators refer to it
  MessagingThread& operator=(const MessagingThread&) = delete;

  bool is_here() const { return std::this_thread::get_id() == id_; }

  /// Starts and tests the messages that other threads have deferred to this one; does nothing on
  /// any other thread. True if one has started or ended. Never blocks.
  bool serve();

 private:
  friend class DeferredCommunicator;
  void add(DeferredCommunicator* communicator);
  void remove(DeferredCommunicator* communicator);

  const std::thread::id id_;
  Mutex lock_;
  std::vector<DeferredCommunicator*> communicators_ KOLO_GUARDED_BY(lock_);
};

/// Lets any thread use a communicator that only one thread may call. Calls of other threads are
/// queued until the messaging thread serves them. On the messaging thread itself a call is executed
/// immediately, after the queued ones.
class DeferredCommunicator final : public Communicator {
 public:
  /// `thread` outlives the object.
  DeferredCommunicator(std::unique_ptr<Communicator> inner, MessagingThread& thread);
  ~DeferredCommunicator() override;
  DeferredCommunicator(const DeferredCommunicator&) = delete;  // transfers refer to it
  DeferredCommunicator& operator=(const DeferredCommunicator&) = delete;

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Transfer send(std::span<const std::byte> data, int destination, int tag) override;
  Transfer receive(std::span<std::byte> data, int source, int tag) override;
  std::optional<Envelope> probe(int tag) override;
  UnderWay give_up_receives() override;

 private:
  friend class MessagingThread;
  using Start = std::function<Transfer(Communicator&)>;

  struct Slot {
    enum class State { Free, Queued, Started, Ended };
    State state = State::Free;
    Start start{};  // while queued
    Transfer transfer{};
    int peer = 0;
    bool is_receive = false;
    bool is_awaited = false;   // another thread polls for its end
    bool is_given_up = false;  // must not be tested any more
    std::exception_ptr error{};
  };

  bool test(std::uint64_t token) override;
  void abandon(std::uint64_t token) noexcept override;

  Transfer add(Start start, int peer, bool is_receive) KOLO_REQUIRES(lock_);
  void release(std::uint64_t token) KOLO_REQUIRES(lock_);
  void start_queued() KOLO_REQUIRES(lock_);
  void start(Slot& slot) KOLO_REQUIRES(lock_);
  bool has_ended(Slot& slot) KOLO_REQUIRES(lock_);
  void give_up_queued_receives() KOLO_REQUIRES(lock_);
  void give_up_started_receives() KOLO_REQUIRES(lock_);
  UnderWay list_started() const KOLO_REQUIRES(lock_);

  bool serve();  // on the messaging thread

  std::unique_ptr<Communicator> inner_;
  MessagingThread& thread_;
  std::atomic<bool> has_work_{false};  // for the messaging thread
  Mutex lock_;
  std::vector<Slot> slots_ KOLO_GUARDED_BY(lock_);
  std::vector<std::uint64_t> free_ KOLO_GUARDED_BY(lock_);
  std::vector<std::uint64_t> queued_ KOLO_GUARDED_BY(lock_);  // in the order of the calls
  // Started, to be ended by the messaging thread.
  std::vector<Transfer> abandoned_ KOLO_GUARDED_BY(lock_);
  // By tag: probes of other threads, and results not returned yet. After a result is returned, the
  // message is not probed for again until the next call of probe(): the caller may not have
  // received it before.
  std::map<int, std::optional<Envelope>> probes_ KOLO_GUARDED_BY(lock_);
  bool gives_up_ KOLO_GUARDED_BY(lock_) = false;              // another thread has asked for it
  std::optional<UnderWay> under_way_ KOLO_GUARDED_BY(lock_);  // the answer, until a later receive
};

}  // namespace kolo::comm
