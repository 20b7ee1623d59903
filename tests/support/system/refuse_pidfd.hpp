#pragma once

namespace kolo::test {

/// From now on pidfd_open fails in this process and its children, as on Linux before 5.3. Throws
/// std::system_error if the system does not allow the filter.
void refuse_pidfd();

}  // namespace kolo::test
