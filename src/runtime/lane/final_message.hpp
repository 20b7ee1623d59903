#pragma once

#include <memory>

#include "runtime/lane/lane.hpp"

namespace kolo::runtime {

/// Sees to it that an uncaught exception ends every rank with its text: from the first lane
/// enlisted on, a terminate handler tells the peers of all enlisted lanes before it hands over to
/// the one that was there before.
void register_for_final_message(std::shared_ptr<Lane> lane);
void unregister_from_final_message(const std::shared_ptr<Lane>& lane);

}  // namespace kolo::runtime
