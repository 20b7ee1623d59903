#pragma once

namespace bench {

/// Prints what limits this machine, and what Kolo would choose on it for `ranks` ranks. Throws
/// kolo::InvalidArgument where the environment has a malformed setting.
void check_self(int ranks);

}  // namespace bench
