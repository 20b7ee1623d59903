#pragma once

#include <chrono>
#include <memory>

#include "runtime/engine/engine.hpp"

namespace kolo::runtime {

/// Peers check for losses at least once in 50 ms. mpirun ends them soon after a process has ended
/// without shutting Kolo down, so it lets them read and print the text first.
inline constexpr std::chrono::milliseconds kTimeToPrint{400};

/// Registers an engine whose peers learn why this process ends. With the first engine a terminate
/// handler is installed: on an uncaught exception it sends the exception's text to the peers of all
/// registered engines, then calls the previous handler unless that is the C++ library's. A process
/// that ends for another's failure has status 1, others abort.
void register_for_final_message(std::shared_ptr<Engine> engine);
void unregister_from_final_message(const std::shared_ptr<Engine>& engine);

}  // namespace kolo::runtime
