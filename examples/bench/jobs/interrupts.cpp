#include "bench/jobs/interrupts.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

namespace bench {

Interrupts::Interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  // SIGPIPE: whoever read our output has gone.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  descriptor_ = Descriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

Interrupts::~Interrupts() { restore(); }

void Interrupts::check() const {
  signalfd_siginfo info{};
  if (::read(descriptor_.number(), &info, sizeof info) == sizeof info) {
    throw Interrupted(static_cast<int>(info.ssi_signo));
  }
}

void Interrupts::restore() const { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace bench
