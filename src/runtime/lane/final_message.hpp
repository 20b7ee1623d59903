#pragma once

#include <memory>

#include "runtime/lane/lane.hpp"

namespace kolo::runtime {

/// Registers a lane whose peers learn why this process ends. With the first lane a terminate
/// handler is installed: on an uncaught exception it sends the exception's text to the peers of all
/// registered lanes, then calls the previous handler.
void register_for_final_message(std::shared_ptr<Lane> lane);
void unregister_from_final_message(const std::shared_ptr<Lane>& lane);

}  // namespace kolo::runtime
