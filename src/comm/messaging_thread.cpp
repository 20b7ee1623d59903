#include "comm/messaging_thread.hpp"

#include "comm/deferred_communicator.hpp"

namespace kolo::comm {

bool MessagingThread::serve() {
  if (!is_here()) return false;
  const std::lock_guard guard(lock_);
  bool has_progressed = false;
  for (DeferredCommunicator* const communicator : communicators_) {
    has_progressed |= communicator->serve();
  }
  return has_progressed;
}

void MessagingThread::add(DeferredCommunicator* communicator) {
  const std::lock_guard guard(lock_);
  communicators_.push_back(communicator);
}

void MessagingThread::remove(DeferredCommunicator* communicator) {
  const std::lock_guard guard(lock_);
  std::erase(communicators_, communicator);
}

}  // namespace kolo::comm
