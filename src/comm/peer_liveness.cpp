#include "comm/peer_liveness.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

// glibc has no wrapper before 2.36.
int open_pidfd(int pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

/// When a process started, in the system's ticks; empty if it has ended, reaped or not.
std::string start_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  // The second field, the program's name, is in parentheses and may contain any character.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  constexpr int kStateField = 3;
  constexpr int kStartField = 22;
  std::string field;
  for (int number = kStateField; number <= kStartField && fields >> field; ++number) {
    if (number == kStateField && (field == "Z" || field == "X")) return {};
  }
  return field;
}

}  // namespace

std::uint64_t pid_namespace() {
  struct stat status{};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

PeerLiveness::PeerLiveness(const std::vector<Peer>& peers) {
  for (const Peer& peer : peers) {
    FileDescriptor process(open_pidfd(peer.pid));
    if (process.is_open()) {
      polled_.push_back({process.get(), POLLIN, 0});
      ranks_.push_back(peer.rank);
      owners_.push_back(std::move(process));
    } else if (errno == ESRCH) {
      dead_.push_back(peer.rank);
    } else if ((errno == ENOSYS || errno == EPERM) && !start_of(::getpid()).empty()) {
      std::string started = start_of(peer.pid);
      if (started.empty()) {
        dead_.push_back(peer.rank);
      } else {
        unopened_.push_back({peer, std::move(started)});
      }
    } else {
      throw BackendError("pidfd_open of rank " + std::to_string(peer.rank) + ": " +
                         std::strerror(errno));
    }
  }
}

std::vector<int> PeerLiveness::dead() {
  const Lock lock(lock_);
  std::erase_if(unopened_, [&](const Unopened& process) KOLO_REQUIRES(lock_) {
    const bool has_ended = start_of(process.peer.pid) != process.started;
    if (has_ended) dead_.push_back(process.peer.rank);
    return has_ended;
  });
  if (polled_.empty() || ::poll(polled_.data(), polled_.size(), 0) <= 0) return dead_;
  for (std::size_t i = polled_.size(); i-- > 0;) {
    if (polled_[i].revents == 0) continue;
    dead_.push_back(ranks_[i]);
    polled_.erase(polled_.begin() + static_cast<std::ptrdiff_t>(i));
    ranks_.erase(ranks_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return dead_;
}

}  // namespace kolo::comm
