#pragma once

#include <mutex>
#include <thread>
#include <vector>

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
  std::mutex lock_;
  std::vector<DeferredCommunicator*> communicators_;
};

}  // namespace kolo::comm
