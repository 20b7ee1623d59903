#include "bench/jobs/interrupts.hpp"

namespace bench {

// SIGPIPE: whoever read our output has gone.
Interrupts::Interrupts() : signals_({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {}

void Interrupts::check() const {
  if (const auto signal = signals_.next()) throw Interrupted(static_cast<int>(signal->ssi_signo));
}

}  // namespace bench
