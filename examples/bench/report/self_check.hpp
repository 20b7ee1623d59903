#pragma once

namespace bench {

/// Prints what limits this machine, and which algorithms Kolo would choose on it for `ranks` ranks.
/// Throws kolo::InvalidArgument if the environment has a malformed setting.
void check_self(int ranks);

}  // namespace bench
