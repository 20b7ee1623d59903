#include "bench/report/probes.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "bench/jobs/channel.hpp"
#include "bench/workload/growing_buffer.hpp"

namespace bench {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kCopying = 100ms;

std::string text_of(int error) { return std::strerror(error); }

/// Runs `function` in a new process; it returns an error number, 0 for none.
pid_t run_in_child(const std::function<int()>& function) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(function());
  return child;
}

int result_of(pid_t child) {
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return errno;
  return WIFEXITED(status) ? WEXITSTATUS(status) : EFAULT;
}

/// Copies until `end`; returns how many bytes.
double copy_until(Clock::time_point end, std::byte* to, const std::byte* from, std::size_t bytes) {
  double copied = 0;
  while (Clock::now() < end) {
    std::memcpy(to, from, bytes);
    asm volatile("" : : "r"(to) : "memory");  // keeps the compiler from removing the copy
    copied += static_cast<double>(bytes);
  }
  return copied;
}

/// Maps memory that another process has open as `descriptor`; returns an error number, 0 for none.
int open_of_other(pid_t owner, int descriptor, std::size_t bytes) {
  const std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(descriptor);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.number() < 0) return errno;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  return memory == MAP_FAILED ? errno : 0;
}

}  // namespace

double copy_bytes_per_second(int threads, std::size_t bytes) {
  std::vector<GrowingBuffer> buffers(2 * static_cast<std::size_t>(threads));
  for (GrowingBuffer& buffer : buffers) buffer.reserve(bytes);
  std::vector<double> copied(static_cast<std::size_t>(threads));
  const auto start = Clock::now();
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < copied.size(); ++i) {
      workers.emplace_back([&, i] {
        copied[i] = copy_until(start + kCopying, buffers[2 * i].reserve(bytes),
                               buffers[2 * i + 1].reserve(bytes), bytes);
      });
    }
  }
  double sum = 0;
  for (const double one : copied) sum += one;
  return sum / std::chrono::duration<double>(Clock::now() - start).count();
}

Space shared_memory_space() {
  struct statvfs space{};
  if (::statvfs("/dev/shm", &space) != 0) return {0, 0};
  return {space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize};
}

std::string why_no_window(std::size_t bytes) {
  const Descriptor file(::open("/dev/shm", O_TMPFILE | O_EXCL | O_RDWR, S_IRUSR | S_IWUSR));
  if (file.number() < 0) return "open a file without a name in /dev/shm: " + text_of(errno);
  if (const int error = ::posix_fallocate(file.number(), 0, static_cast<off_t>(bytes))) {
    return "/dev/shm has no room for " + std::to_string(bytes) + " bytes: " + text_of(error);
  }
  const pid_t self = ::getpid();
  const int error =
      result_of(run_in_child([&] { return open_of_other(self, file.number(), bytes); }));
  return error == 0 ? "" : "a process cannot open another one's: " + text_of(error);
}

std::string why_no_single_copy() {
  std::array<int, 2> ready{};
  if (::pipe2(ready.data(), O_CLOEXEC) != 0) return "pipe2: " + text_of(errno);
  const Descriptor read_end(ready[0]);
  const Descriptor write_end(ready[1]);
  char value = 0;
  const pid_t owner = run_in_child([&] {
    value = 1;
    if (::write(write_end.number(), &value, 1) != 1) return EPIPE;
    for (;;) ::pause();
  });
  char note = 0;
  if (owner < 0 || ::read(read_end.number(), &note, 1) != 1) return "fork: " + text_of(errno);
  const pid_t reader = run_in_child([&] {
    char copy = 0;
    const iovec to{&copy, 1};
    const iovec from{&value, 1};
    if (::process_vm_readv(owner, &to, 1, &from, 1, 0) != 1) return errno;
    return copy == 1 ? 0 : EFAULT;
  });
  const int error = result_of(reader);
  ::kill(owner, SIGKILL);
  result_of(owner);
  return error == 0 ? "" : "process_vm_readv: " + text_of(error);
}

}  // namespace bench
