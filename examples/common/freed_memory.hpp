#pragma once

#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace examples {

/// Makes the process keep freed memory for the next call or step. By default glibc returns large
/// blocks to the kernel, which clears and maps them again, page by page, each time.
inline void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MMAP_MAX, 0);  // blocks of their own are always returned
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace examples
