#include "comm/joined_mapping.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <sys/mman.h>

#include "kolo/error.hpp"

namespace kolo::comm {

JoinedMapping::JoinedMapping(std::size_t size_bytes, std::span<const Part> parts)
    : size_bytes_(size_bytes),
      memory_(::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0)) {
  if (memory_ == MAP_FAILED) {
    throw BackendError("reserve " + std::to_string(size_bytes) +
                       " bytes of addresses: " + std::strerror(errno));
  }
  for (const Part& part : parts) {
    // With an old size of 0, mremap maps the pages of a shared mapping once more.
    void* const mapped = ::mremap(part.memory, 0, part.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                  data() + part.offset);
    if (mapped == MAP_FAILED) {
      const int error = errno;
      ::munmap(memory_, size_bytes_);
      throw BackendError("map " + std::to_string(part.size_bytes) +
                         " bytes of shared memory once more: " + std::strerror(error));
    }
  }
}

JoinedMapping::~JoinedMapping() { ::munmap(memory_, size_bytes_); }

}  // namespace kolo::comm
