#include "common/signal_queue.hpp"

#include <unistd.h>

namespace examples {

SignalQueue::SignalQueue(const std::vector<int>& signals) {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : signals) sigaddset(&taken, signal);
  pthread_sigmask(SIG_BLOCK, &taken, &before_);
  descriptor_ = Descriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalQueue::~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::optional<signalfd_siginfo> SignalQueue::next() const {
  signalfd_siginfo info{};
  if (::read(descriptor_.number(), &info, sizeof info) != sizeof info) return std::nullopt;
  return info;
}

}  // namespace examples
