#pragma once

namespace examples {

/// Makes the process keep freed memory for the next step. By default glibc returns large blocks to
/// the kernel, which clears and maps them again, page by page, in every step.
void keep_freed_memory();

}  // namespace examples
