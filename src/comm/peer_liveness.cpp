#include "comm/peer_liveness.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

// glibc has no wrapper before 2.36.
int open_pidfd(int pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

}  // namespace

PeerLiveness::PeerLiveness(const std::vector<Peer>& peers) {
  for (const Peer& peer : peers) {
    FileDescriptor process(open_pidfd(peer.pid));
    if (process.is_open()) {
      polled_.push_back({process.get(), POLLIN, 0});
      ranks_.push_back(peer.rank);
      owners_.push_back(std::move(process));
    } else if (errno == ESRCH) {
      dead_.push_back(peer.rank);
    } else {
      throw BackendError("pidfd_open of rank " + std::to_string(peer.rank) + ": " +
                         std::strerror(errno));
    }
  }
}

std::vector<int> PeerLiveness::dead() {
  const std::lock_guard lock(lock_);
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
