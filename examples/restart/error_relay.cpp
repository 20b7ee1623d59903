#include "restart/error_relay.hpp"

#include <array>
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

namespace restart {

ErrorRelay::ErrorRelay() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "pipe2");
  }
  output_ = examples::Descriptor(ends[0]);
  input_ = examples::Descriptor(ends[1]);
  ::fcntl(output_.number(), F_SETFL, O_NONBLOCK);
}

std::vector<pollfd> ErrorRelay::watched() const {
  // Nothing is read while output is pending: a job that writes faster is blocked, as by any reader.
  if (!pending_.empty()) return {{STDERR_FILENO, POLLOUT, 0}};
  return {{output_.number(), POLLIN, 0}};
}

void ErrorRelay::move(const std::vector<pollfd>& watched) {
  if (watched.front().revents == 0) return;
  if (watched.front().fd == STDERR_FILENO) {
    write();
  } else if (!read()) {
    output_ = examples::Descriptor();  // poll() ignores -1
  }
}

void ErrorRelay::finish() {
  do {
    while (!pending_.empty()) {
      pollfd out{STDERR_FILENO, POLLOUT, 0};
      ::poll(&out, 1, -1);
      write();
    }
  } while (output_.number() >= 0 && read() && !pending_.empty());
}

/// False at the end: all writers have closed.
bool ErrorRelay::read() {
  std::array<char, PIPE_BUF> part{};  // fits into any pipe that is writable
  const ssize_t bytes = ::read(output_.number(), part.data(), part.size());
  if (bytes < 0) return true;
  pending_.assign(part.data(), static_cast<std::size_t>(bytes));
  finder_.add(pending_);
  return bytes > 0;
}

void ErrorRelay::write() {
  const ssize_t bytes = ::write(STDERR_FILENO, pending_.data(), pending_.size());
  if (bytes >= 0) {
    pending_.erase(0, static_cast<std::size_t>(bytes));
  } else if (errno != EINTR && errno != EAGAIN) {
    pending_.clear();  // it has no reader
  }
}

}  // namespace restart
