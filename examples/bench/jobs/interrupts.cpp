#include "bench/jobs/interrupts.hpp"

namespace bench {

// SIGPIPE: the reader of our output has exited.
Interrupts::Interrupts() : signals_({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {}

void Interrupts::check() const {
  if (const auto signal = signals_.next()) throw Interrupted(static_cast<int>(signal->ssi_signo));
}

}  // namespace bench
