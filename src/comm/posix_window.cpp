#include "comm/posix_window.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "comm/file_descriptor.hpp"
#include "comm/outgoing.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

// The counter has its own page, so that the memory behind it starts on one.
constexpr std::size_t kPageBytes = 4096;

/// A mapping, taken back by the destructor.
class Mapping {
 public:
  Mapping(int fd, std::size_t size_bytes) : size_bytes_(size_bytes) {
    memory_ = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, MAP_FAILED)), size_bytes_(other.size_bytes_) {}
  Mapping& operator=(Mapping&&) = delete;
  Mapping(const Mapping&) = delete;  // it is taken back once
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (is_valid()) ::munmap(memory_, size_bytes_);
  }

  bool is_valid() const { return memory_ != MAP_FAILED; }
  void leave_out_of_core_dumps() const { ::madvise(memory_, size_bytes_, MADV_DONTDUMP); }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_;
  std::size_t size_bytes_;
};

/// What ranks tell one another: where a segment is, or why there is none.
struct Notice {
  std::int32_t pid = 0;
  std::int32_t fd = 0;
  std::uint64_t size_bytes = 0;
  std::array<char, 240> failure{};  // empty: success

  void fail(const std::string& text) { text.copy(failure.data(), failure.size() - 1); }
  bool has_failed() const { return failure[0] != '\0'; }
};

std::string system_text(int error) { return std::strerror(error); }

/// A new segment. Sets `notice.failure` where there is none to be had.
FileDescriptor make_segment(std::size_t size_bytes, Notice& notice) {
  FileDescriptor segment(
      ::open("/dev/shm", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!segment.is_open()) {
    notice.fail("open a file without a name in /dev/shm: " + system_text(errno));
    return {};
  }
  int error = 0;
  do {
    error = ::posix_fallocate(segment.get(), 0, static_cast<off_t>(size_bytes));
  } while (error == EINTR);
  if (error != 0) {
    notice.fail("cannot reserve " + std::to_string(size_bytes) +
                " bytes of shared memory (/dev/shm): " + system_text(error));
  }
  return segment;
}

/// Maps every rank's segment. Sets `own.failure` where that fails.
std::vector<Mapping> map_all(const std::vector<Notice>& segments, Notice& own) {
  std::vector<Mapping> mappings;
  for (const Notice& segment : segments) {
    const std::string path =
        "/proc/" + std::to_string(segment.pid) + "/fd/" + std::to_string(segment.fd);
    const FileDescriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!opened.is_open()) {
      own.fail("open " + path + ": " + system_text(errno));
      break;
    }
    mappings.emplace_back(opened.get(), segment.size_bytes);
    if (!mappings.back().is_valid()) {
      own.fail("mmap " + std::to_string(segment.size_bytes) + " bytes: " + system_text(errno));
      break;
    }
    // A rank's dump has what that rank made: the dumps of n ranks are not n times everybody's memory.
    if (segment.pid != own.pid) mappings.back().leave_out_of_core_dumps();
  }
  return mappings;
}

/// Every rank's notice, in the order of ranks.
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

std::shared_ptr<SharedWindow> make_window(int rank, std::size_t segment_bytes,
                                          std::vector<Mapping> mappings) {
  std::vector<SharedWindow::Segment> segments;
  for (const Mapping& mapping : mappings) {
    segments.push_back({reinterpret_cast<SharedWindow::StageCounter*>(mapping.data()),
                        {mapping.data() + kPageBytes, segment_bytes}});
  }
  return std::make_shared<SharedWindow>(
      rank, std::move(segments), std::make_shared<const std::vector<Mapping>>(std::move(mappings)));
}

/// Throws on every rank where any has failed, with the first one's text.
void require_success(const std::vector<Notice>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].has_failed()) {
      throw BackendError("shared memory on rank " + std::to_string(rank) +
                         " of the set: " + std::string(all[rank].failure.data()));
    }
  }
}

}  // namespace

Task make_posix_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                       std::shared_ptr<SharedWindow>& window) {
  Notice own;
  own.pid = ::getpid();
  own.size_bytes = kPageBytes + (segment_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (own.size_bytes < segment_bytes) own.fail("more bytes than there are addresses");
  FileDescriptor segment;
  if (!own.has_failed()) segment = make_segment(own.size_bytes, own);
  own.fd = segment.get();

  std::vector<Notice> all;
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  std::vector<Mapping> mappings = map_all(all, own);

  // Only when all have mapped it may a rank close its descriptor, or believe in its success.
  co_await exchange(communicator, tag, own, all);
  require_success(all);
  window = make_window(communicator.rank(), segment_bytes, std::move(mappings));
}

}  // namespace kolo::comm
