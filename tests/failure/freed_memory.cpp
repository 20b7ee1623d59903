// Watches the memory of operations that failed with PeerLostError: it must not be written to any
// more.
//
// Every rank but the victim reduces buffers, several at a time, until the victim dies in the
// middle. As soon as a handle is ready its buffer counts as freed. From then on the rank makes MPI
// progress for a while, so that anything still posted can arrive. The driver, freed_memory_test.py,
// runs this under mpirun and reads one line per rank: "rank 1: clean, 12582912 bytes watched".
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <mpi.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kBytes = std::size_t{4} << 20;  // per buffer; split into segments and pieces
constexpr std::size_t kBuffers = 3;                   // in flight simultaneously
constexpr std::byte kFreed{0xa5};
constexpr auto kWatch = 700ms;

std::string from_environment(const char* name, const char* otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

/// Memory between two inaccessible pages.
class GuardedBuffer {
 public:
  GuardedBuffer() {
    void* const memory =
        ::mmap(nullptr, kBytes + 2 * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = static_cast<std::byte*>(memory) + kPageBytes;
    if (memory == MAP_FAILED || ::mprotect(data_, kBytes, PROT_READ | PROT_WRITE) != 0) {
      std::perror("a guarded buffer");
      std::_Exit(2);
    }
  }
  GuardedBuffer(const GuardedBuffer&) = delete;  // never unmapped: it is watched to the end
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  ~GuardedBuffer() = default;

  kolo::TensorView view() const {
    return {data_, kolo::DType::Float32, {kBytes / sizeof(float)}, {}};
  }

  /// Marks the memory as unused by its owner. `trap`: a write by this process ends it immediately.
  void free(bool trap) {
    is_freed_ = true;
    std::memset(data_, static_cast<int>(kFreed), kBytes);
    if (trap) ::mprotect(data_, kBytes, PROT_READ);
  }
  bool is_freed() const { return is_freed_; }
  std::size_t count_written() const {
    return kBytes - static_cast<std::size_t>(std::count(data_, data_ + kBytes, kFreed));
  }

 private:
  std::byte* data_;
  bool is_freed_ = false;
};

using Buffers = std::array<GuardedBuffer, kBuffers>;

/// Makes MPI progress, as if the program used MPI itself.
void make_mpi_progress() {
  const auto until = std::chrono::steady_clock::now() + kWatch;
  while (std::chrono::steady_clock::now() < until) {
    int is_there = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(50us);
  }
}

void die_later() {
  const std::chrono::microseconds moment(
      std::atoi(from_environment("KOLO_TEST_MOMENT_US", "0").c_str()));
  std::thread([moment] {
    std::this_thread::sleep_for(moment);
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

/// Frees the buffer of a handle that fails with a loss as soon as it is ready. The victim dies
/// after the first step, when all ranks have started.
void reduce_until_lost(Buffers& buffers, bool trap, bool is_victim) {
  for (bool is_lost = false, is_first = true; !is_lost; is_first = false) {
    std::vector<kolo::Handle> handles;
    for (const GuardedBuffer& buffer : buffers) {
      const std::string name = "buffer " + std::to_string(handles.size());
      handles.push_back(kolo::allreduce_async(buffer.view(), buffer.view(), {.name = name}));
    }
    for (std::size_t i = 0; i < kBuffers; ++i) {
      try {
        handles[i].wait();
      } catch (const kolo::PeerLostError&) {
        buffers[i].free(trap);
        is_lost = true;
      }
    }
    if (is_first && is_victim) die_later();
  }
}

/// Reports the result and returns the exit status.
int report(int rank, const Buffers& buffers) {
  std::size_t watched = 0;
  std::size_t written = 0;
  for (const GuardedBuffer& buffer : buffers) {
    if (!buffer.is_freed()) continue;
    watched += kBytes;
    written += buffer.count_written();
  }
  std::printf("rank %d: %s, %zu bytes watched, %zu written\n", rank,
              written == 0 ? "clean" : "WRITTEN", watched, written);
  std::fflush(stdout);
  return written == 0 ? 0 : 1;
}

}  // namespace

int main() {
  const kolo::Runtime runtime;
  const bool trap = from_environment("KOLO_TEST_WATCH", "pattern") == "trap";
  Buffers buffers;
  const std::string victim = from_environment("KOLO_TEST_VICTIM", "0");
  reduce_until_lost(buffers, trap, victim == std::to_string(runtime.rank()));
  make_mpi_progress();
  std::_Exit(report(runtime.rank(), buffers));  // no rank is left for a final message
}
