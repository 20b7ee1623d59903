#pragma once

namespace kolo::test {

/// From now on pidfd_open fails in this process and its children with `error`: ENOSYS, as on Linux
/// before 5.3, or EPERM, as in some containers. Throws std::system_error if the system does not
/// allow the filter.
void refuse_pidfd(int error);

}  // namespace kolo::test
