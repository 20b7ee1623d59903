#pragma once

namespace examples {

/// Makes the process keep what it frees, for the next step. By default glibc gives large blocks
/// back to the kernel, which clears and maps them anew, page by page, at every step.
void keep_freed_memory();

}  // namespace examples
