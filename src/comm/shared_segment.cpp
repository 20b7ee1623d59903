#include "comm/shared_segment.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/held_signal.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw BackendError(what + ": " + std::strerror(error));
}

[[noreturn]] void refuse(const std::string& path) {
  throw BackendError(path +
                     " is not the segment of that rank. Ranks that share memory must run in "
                     "one PID namespace");
}

struct stat status_of(const FileDescriptor& file) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail("fstat of shared memory", errno);
  return status;
}

}  // namespace

// --- mappings ---

Mapping::Mapping(int fd, std::size_t size_bytes) : size_bytes_(size_bytes) {
  memory_ = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory_ == MAP_FAILED) fail("mmap " + std::to_string(size_bytes) + " bytes", errno);
}

Mapping::Mapping(Mapping&& other) noexcept
    : memory_(std::exchange(other.memory_, MAP_FAILED)), size_bytes_(other.size_bytes_) {}

Mapping::~Mapping() {
  if (memory_ != MAP_FAILED) ::munmap(memory_, size_bytes_);
}

void Mapping::leave_out_of_core_dumps() const { ::madvise(memory_, size_bytes_, MADV_DONTDUMP); }

// --- segments ---

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

NewSegment make_segment(std::size_t size_bytes) {
  NewSegment segment{FileDescriptor(::open("/dev/shm", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC,
                                           S_IRUSR | S_IWUSR)),
                     {}};
  const FileDescriptor& file = segment.file;
  if (!file.is_open()) fail("open a file without a name in /dev/shm", errno);
  const HeldSignal too_large(SIGXFSZ);
  int error = 0;
  do {
    error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(size_bytes));
  } while (error == EINTR);
  if (error != 0) {
    fail("cannot reserve " + std::to_string(size_bytes) + " bytes of shared memory (/dev/shm)",
         error);
  }

  const struct stat status = status_of(file);
  SegmentAddress& address = segment.address;
  address = {::getpid(), file.get(), status.st_dev, status.st_ino, size_bytes, {}};
  constexpr ::ssize_t kKeyBytes = sizeof address.key;
  if (::getrandom(address.key.data(), kKeyBytes, 0) != kKeyBytes ||
      ::pwrite(file.get(), address.key.data(), kKeyBytes, NewSegment::kKeyOffset) != kKeyBytes) {
    fail("write the key of shared memory", errno);
  }
  return segment;
}

Mapping open_segment(const SegmentAddress& address) {
  const std::string path =
      "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  // The path may lead to anything: opening must not block on a pipe or acquire a terminal.
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.is_open()) fail("open " + path, errno);
  const struct stat status = status_of(file);
  const bool is_same_file = status.st_dev == address.device && status.st_ino == address.inode &&
                            static_cast<std::uint64_t>(status.st_size) == address.size_bytes;
  if (!is_same_file) refuse(path);
  Mapping mapping(file.get(), address.size_bytes);
  // Device and inode numbers may coincide on another machine that was mistaken for this one.
  const std::byte* const key = mapping.data() + NewSegment::kKeyOffset;
  if (std::memcmp(key, address.key.data(), sizeof address.key) != 0) refuse(path);
  return mapping;
}

}  // namespace kolo::comm
