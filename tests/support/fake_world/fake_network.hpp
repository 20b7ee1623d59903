#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#include "support/fake_world/fake_world.hpp"
#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

/// Zeroed memory for the segments of a fake window. The system provides a page when it is first
/// touched: tests make thousands of windows and use a few bytes of most, and ThreadSanitizer would
/// note down every byte that an allocator hands out. Accesses past the end fail.
class WindowMemory {
 public:
  /// @param size_bytes a multiple of the alignment that `data()` needs
  explicit WindowMemory(std::size_t size_bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    if (size_bytes > std::numeric_limits<std::size_t>::max() - 2 * page) throw std::bad_alloc();
    const std::size_t used_bytes = (size_bytes + page - 1) / page * page;
    mapped_bytes_ = used_bytes + page;
    mapping_ =
        ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) fail("mmap");
    data_ = static_cast<std::byte*>(mapping_) + (used_bytes - size_bytes);
    if (::mprotect(data_ + size_bytes, page, PROT_NONE) != 0) {
      const int error = errno;
      ::munmap(mapping_, mapped_bytes_);
      errno = error;
      fail("mprotect");
    }
  }
  WindowMemory(const WindowMemory&) = delete;  // unmapped once
  WindowMemory& operator=(const WindowMemory&) = delete;
  ~WindowMemory() { ::munmap(mapping_, mapped_bytes_); }

  std::byte* data() const { return data_; }

 private:
  [[noreturn]] void fail(const char* call) const {
    throw std::system_error(errno, std::generic_category(),
                            std::string(call) + " " + std::to_string(mapped_bytes_) + " bytes");
  }

  std::size_t mapped_bytes_;
  void* mapping_;
  std::byte* data_;
};

/// A message in transit from one rank to another.
struct Message {
  int source = 0;  // world rank
  int tag = 0;
  std::vector<std::byte> data;
  std::chrono::steady_clock::time_point due;
  std::atomic<bool> is_received{false};
};
using MessageList = std::list<std::shared_ptr<Message>>;

/// The messages to one rank on one channel, arrived or in transit, in the order they were sent.
struct Mailbox {
  std::mutex lock;
  MessageList messages;
};

inline constexpr std::size_t kLineBytes = 64;

/// Segments of all ranks, allocated once and shared by the threads' windows.
struct FakeMemory {
  struct alignas(kLineBytes) Counter {
    std::atomic<std::uint64_t> value{0};
  };

  FakeMemory(std::size_t ranks, std::size_t requested_bytes)
      : counters(ranks),
        segment_bytes(in_lines(requested_bytes, ranks)),
        segments(ranks * segment_bytes) {}

  std::vector<Counter> counters;
  std::size_t segment_bytes;  ///< of whole lines: segments are aligned as the product's are
  WindowMemory segments;

 private:
  static std::size_t in_lines(std::size_t bytes, std::size_t ranks) {
    if (bytes > std::numeric_limits<std::size_t>::max() / ranks - kLineBytes) {
      throw std::bad_alloc();
    }
    return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  }
};

/// State that the ranks of one fake world share. Thread-safe.
class FakeNetwork {
 public:
  FakeNetwork(int size, FakeOptions options)
      : size_(size),
        options_(options),
        hub_(options.gpus_per_rank > 0 ? std::make_shared<FakeGpuHub>(size, options) : nullptr),
        random_(options.seed),
        is_dead_(static_cast<std::size_t>(size)),
        is_unplugged_(static_cast<std::size_t>(size)) {}

  int size() const { return size_; }
  const FakeOptions& options() const { return options_; }
  const std::shared_ptr<FakeGpuHub>& hub() const { return hub_; }
  bool is_dead(int rank) const { return is_dead_[static_cast<std::size_t>(rank)]; }
  void kill(int rank) { is_dead_[static_cast<std::size_t>(rank)] = true; }

  /// The time that decides which messages have arrived.
  std::chrono::steady_clock::time_point now() const {
    if (!options_.has_virtual_time) return std::chrono::steady_clock::now();
    return std::chrono::steady_clock::time_point(virtual_time_.load());
  }
  void advance(std::chrono::steady_clock::duration time) {
    virtual_time_ = virtual_time_.load() + time;
  }

  std::shared_ptr<Message> send(int channel, int source, int destination, int tag,
                                std::span<const std::byte> data) {
    auto message = std::make_shared<Message>();
    message->source = source;
    message->tag = tag;
    message->data.assign(data.begin(), data.end());
    message->due = now() + random_delay();
    if (is_dead(source) || is_dead(destination)) return message;
    Mailbox& mailbox = mailbox_of(channel, destination);
    const std::lock_guard lock(mailbox.lock);  // plug_in reads messages under this lock
    if (is_cut(source, destination)) message->due = std::chrono::steady_clock::time_point::max();
    for (const auto& earlier : mailbox.messages) {  // preserves message order
      if (earlier->source == source && earlier->tag == tag) {
        message->due = std::max(message->due, earlier->due);
      }
    }
    mailbox.messages.push_back(message);
    return message;
  }

  void unplug(int rank) { is_unplugged_[static_cast<std::size_t>(rank)] = true; }
  /// Messages that were held back since unplug() now arrive, in order.
  void plug_in(int rank) {
    is_unplugged_[static_cast<std::size_t>(rank)] = false;
    const std::lock_guard lock(lock_);
    for (auto& [place, mailbox] : mailboxes_) {
      const std::lock_guard mailbox_lock(mailbox.lock);
      for (const auto& message : mailbox.messages) {
        if (is_cut(message->source, place.second)) continue;
        message->due = std::min(message->due, now());
      }
    }
  }

  Mailbox& mailbox_of(int channel, int rank) {
    const std::lock_guard lock(lock_);
    return mailboxes_[{channel, rank}];
  }

  /// The memory of the next window of `members` on a channel, ready once all of them have arrived.
  struct WindowRequest {
    std::shared_ptr<FakeMemory> memory;
    std::size_t arrived = 0;
    std::optional<std::string> failure;
  };
  WindowRequest& arrive(int channel, const std::vector<int>& members, int rank, std::size_t bytes) {
    const std::lock_guard lock(lock_);
    const std::uint64_t round = window_rounds_[{channel, members, rank}]++;
    WindowRequest& request = windows_[{channel, members, round}];
    ++request.arrived;
    try {
      if (!options_.has_shared_memory) throw std::runtime_error("there is no shared memory");
      if (!request.memory) request.memory = std::make_shared<FakeMemory>(members.size(), bytes);
    } catch (const std::exception& error) {
      request.failure = error.what();
    }
    return request;
  }
  bool all_arrived(const WindowRequest& request, std::size_t members) {
    const std::lock_guard lock(lock_);
    return request.arrived == members;
  }

 private:
  bool is_cut(int source, int destination) const {
    return is_unplugged_[static_cast<std::size_t>(source)] !=
           is_unplugged_[static_cast<std::size_t>(destination)];
  }

  std::chrono::microseconds random_delay() {
    if (options_.longest_delay.count() == 0) return std::chrono::microseconds(0);
    const std::lock_guard lock(lock_);
    return std::chrono::microseconds(
        std::uniform_int_distribution<std::int64_t>(0, options_.longest_delay.count())(random_));
  }

  const int size_;
  const FakeOptions options_;
  const std::shared_ptr<FakeGpuHub> hub_;
  std::mutex lock_;
  std::mt19937_64 random_;
  std::atomic<std::chrono::steady_clock::duration> virtual_time_{};
  std::vector<std::atomic<bool>> is_dead_;
  std::vector<std::atomic<bool>> is_unplugged_;
  std::map<std::pair<int, int>, Mailbox> mailboxes_;
  std::map<std::tuple<int, std::vector<int>, int>, std::uint64_t> window_rounds_;
  std::map<std::tuple<int, std::vector<int>, std::uint64_t>, WindowRequest> windows_;
};

}  // namespace kolo::test
