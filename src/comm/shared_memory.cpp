#include "comm/shared_memory.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/held_signal.hpp"
#include "base/intentional_leak.hpp"
#include "base/memory_size.hpp"
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

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

int reserve(const FileDescriptor& file, std::size_t begin, std::size_t bytes) {
  const HeldSignal too_large(SIGXFSZ);
  int error = 0;
  do {
    error = ::posix_fallocate(file.get(), static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

NewSegment make_segment(std::size_t size_bytes, std::size_t reserved_bytes) {
  NewSegment segment{FileDescriptor(::open("/dev/shm", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC,
                                           S_IRUSR | S_IWUSR)),
                     {}};
  const FileDescriptor& file = segment.file;
  if (!file.is_open()) fail("open a file without a name in /dev/shm", errno);
  if (const int error = reserve(file, 0, reserved_bytes); error != 0) {
    fail("cannot reserve " + std::to_string(reserved_bytes) + " bytes of shared memory (/dev/shm)",
         error);
  }
  const HeldSignal too_large(SIGXFSZ);
  if (reserved_bytes < size_bytes && ::ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0) {
    fail("cannot make a segment of " + std::to_string(size_bytes) + " bytes", errno);
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

JoinedMapping::JoinedMapping(std::size_t size_bytes, std::span<const Part> parts)
    : size_bytes_(size_bytes),
      memory_(::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0)) {
  if (memory_ == MAP_FAILED) {
    throw BackendError("reserve " + std::to_string(size_bytes) +
                       " bytes of addresses: " + std::strerror(errno));
  }
  for (const Part& part : parts) {
    // With an old size of 0, mremap maps the pages of a shared mapping once more. UCX, which MPI
    // may use, replaces the function by one that ignores the new address.
    constexpr long kFlags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (::syscall(SYS_mremap, part.memory, std::size_t{0}, part.size_bytes, kFlags,
                  data() + part.offset) == -1) {
      const int error = errno;
      ::munmap(memory_, size_bytes_);
      throw BackendError("map " + std::to_string(part.size_bytes) +
                         " bytes of shared memory once more: " + std::strerror(error));
    }
  }
}

JoinedMapping::~JoinedMapping() { ::munmap(memory_, size_bytes_); }

void require_success(std::span<const Notice> all, const std::string& what) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failure[0] == '\0') continue;
    throw BackendError(what + " on rank " + std::to_string(rank) +
                       " of the set: " + std::string(all[rank].failure.data()));
  }
}

namespace {

std::uint64_t machine_bytes() {
  struct sysinfo machine{};
  if (::sysinfo(&machine) != 0) return kLongestMemory;
  return (std::uint64_t{machine.totalram} + machine.totalswap) * machine.mem_unit;
}

/// Call it before reserving memory: the kernel would kill processes rather than refuse the last
/// pages.
void require_memory(std::size_t size_bytes, int ranks) {
  const std::uint64_t total = machine_bytes();
  if (size_bytes <= total / static_cast<std::uint64_t>(ranks)) return;
  throw BackendError(std::to_string(size_bytes) + " bytes of shared memory for each of " +
                     std::to_string(ranks) + " ranks exceed this machine's " +
                     std::to_string(total) + " bytes");
}

/// Gathers every rank's notice, in rank order.
Task exchange(Communicator& communicator, int tag, const Notice& own, std::vector<Notice>& all) {
  all.assign(static_cast<std::size_t>(communicator.size()), Notice{});
  Outgoing<Notice> outgoing(own);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    transfers.push_back(communicator.receive(
        std::as_writable_bytes(std::span(&all[static_cast<std::size_t>(peer)], 1)), peer, tag));
    transfers.push_back(communicator.send(outgoing.bytes(), peer, tag));
  }
  for (Transfer& transfer : transfers) co_await transfer;
  outgoing.set_left();
}

std::shared_ptr<SharedWindow> map_window(int rank, std::span<const SegmentAddress> addresses,
                                         std::size_t segment_bytes) {
  auto mappings = std::make_shared<std::vector<Mapping>>();
  std::vector<SharedWindow::Segment> segments;
  for (const SegmentAddress& address : addresses) {
    const Mapping& mapping = mappings->emplace_back(open_segment(address));
    // A rank's core dump holds only its own segment; otherwise n dumps would hold n copies of each.
    if (std::ssize(segments) != rank) mapping.leave_out_of_core_dumps();
    // The counter and the key have a separate page, so that the usable memory is page-aligned.
    segments.push_back({reinterpret_cast<SharedWindow::StageCounter*>(mapping.data()),
                        {mapping.data() + page_bytes(), segment_bytes}});
  }
  return std::make_shared<SharedWindow>(rank, std::move(segments), std::move(mappings));
}

/// `make` makes this rank's segment, whose bytes behind the first page are those of the window.
template <class Make>
Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes, const Make& make,
                 NewSegment& segment, std::vector<SegmentAddress>& segments,
                 std::shared_ptr<SharedWindow>& window) {
  Notice own;
  own.attempt([&] {
    segment = make();
    own.segment = segment.address;
  });

  std::vector<Notice> all;
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  for (const Notice& notice : all) segments.push_back(notice.segment);
  std::shared_ptr<SharedWindow> mapped;
  own.attempt([&] { mapped = map_window(communicator.rank(), segments, segment_bytes); });

  // A rank may close its descriptor only after all have mapped it, and succeeds only if all do.
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  window = std::move(mapped);
}

}  // namespace

Task make_posix_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                       std::shared_ptr<SharedWindow>& window) {
  const auto make = [&] {
    require_memory(segment_bytes, communicator.size());
    return make_segment(page_bytes() + whole_pages(segment_bytes));
  };
  NewSegment segment;
  std::vector<SegmentAddress> segments;
  co_await make_window(communicator, tag, segment_bytes, make, segment, segments, window);
}

Task make_empty_segments(Communicator& communicator, int tag, FileDescriptor& file,
                         std::vector<SegmentAddress>& segments) {
  const std::size_t bytes =
      whole_pages(machine_bytes() / static_cast<std::uint64_t>(communicator.size()));
  const auto make = [&] { return make_segment(page_bytes() + bytes, page_bytes()); };
  NewSegment segment;
  std::shared_ptr<SharedWindow> proof;  // that all can map them
  co_await make_window(communicator, tag, bytes, make, segment, segments, proof);
  file = std::move(segment.file);
}

std::shared_ptr<SharedWindow> map_window(int rank, std::span<const SegmentAddress> segments) {
  return map_window(rank, segments, segments.front().size_bytes - page_bytes());
}

}  // namespace kolo::comm
