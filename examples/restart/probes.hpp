#pragma once

#include <string>
#include <vector>

#include "restart/children.hpp"

namespace restart {

/// Runs all commands at the same time. Returns which of them have succeeded within `limit`; the
/// others are ended, which may take `grace`. A signal that asks this program to end cuts it short.
/// Throws examples::CannotStart.
std::vector<bool> run_probes(Children& children,
                             const std::vector<std::vector<std::string>>& commands,
                             milliseconds limit, milliseconds grace);

/// Waits for `time`, or until a signal asks this program to end.
void rest(Children& children, milliseconds time);

}  // namespace restart
