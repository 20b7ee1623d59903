#pragma once

namespace kolo::test {

/// From now on this process and its children find no pidfd_open, as on Linux before 5.3. Throws
/// std::system_error where the system does not allow it.
void refuse_pidfd();

}  // namespace kolo::test
