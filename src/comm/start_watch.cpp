#include "comm/start_watch.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <stop_token>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/text.hpp"

namespace kolo::comm {
namespace {

/// The name of a rank's socket. It begins with a zero byte, so it is not a file and disappears with
/// the process.
struct SocketName {
  sockaddr_un address{};
  socklen_t size = 0;

  SocketName(const std::string& job, int rank) {
    const std::string text = "kolo-start-" + std::to_string(::getuid()) + "-" +
                             std::to_string(std::hash<std::string>{}(job)) + "-" +
                             std::to_string(rank);
    address.sun_family = AF_UNIX;
    text.copy(&address.sun_path[1], sizeof(address.sun_path) - 2);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

FileDescriptor make_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

}  // namespace

std::string text_of_seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::ceil<std::chrono::seconds>(time).count()) + " s";
}

StartWatch::StartWatch(std::optional<Launcher> launcher) : launcher_(std::move(launcher)) {
  if (!launcher_ || launcher_->rank < 0) return;
  here_ = make_socket();
  const SocketName name(launcher_->job, launcher_->rank);
  // Without the socket, error texts are less specific.
  if (::bind(here_.get(), name.get(), name.size) != 0) here_ = FileDescriptor();
}

bool StartWatch::has_started(int rank) const {
  const SocketName name(launcher_->job, rank);
  const FileDescriptor asking = make_socket();
  return asking.is_open() && ::connect(asking.get(), name.get(), name.size) == 0;
}

void StartWatch::look() {
  if (!launcher_) return;
  for (int rank = 0; rank < launcher_->size; ++rank) {
    if (has_started(rank)) last_seen_.insert(rank);
  }
}

std::string StartWatch::describe_arrivals() const {
  if (!launcher_ || launcher_->size == 0) return "Which ranks have come is unknown.";
  std::vector<int> here;
  std::vector<int> others;
  for (int rank = 0; rank < launcher_->size; ++rank) {
    const bool has_come = last_seen_.contains(rank) || has_started(rank);
    (has_come ? here : others).push_back(rank);
  }
  std::string text = "Of " + std::to_string(launcher_->size) + " ranks, ";
  if (here.empty()) return text + "none is known to have come.";
  text += std::to_string(here.size()) + (here.size() == 1 ? " has" : " have") +
          " come on this host (" + list_ranks(here) + ")";
  if (others.empty()) return text + ".";
  return text + "; " + list_ranks(others) +
         (others.size() == 1 ? " has not come, or has ended, or runs on another host."
                             : " have not come, or have ended, or run on other hosts.");
}

EndOnTimeout::EndOnTimeout(StartWatch& watch, std::chrono::nanoseconds timeout)
    : thread_([&watch, timeout](const std::stop_token& stop) {
        Mutex mutex;
        const Lock lock(mutex);
        std::condition_variable_any wake_up;
        const auto never = [] { return false; };
        const auto time_to_look = StartWatch::time_to_look(timeout);
        wake_up.wait_for(mutex, stop, time_to_look, never);
        if (stop.stop_requested()) return;
        watch.look();
        wake_up.wait_for(mutex, stop, timeout - time_to_look, never);
        if (stop.stop_requested()) return;
        const std::string text = "[kolo] MPI_Init has waited for other ranks for " +
                                 text_of_seconds(timeout) + " (KOLO_START_TIMEOUT). " +
                                 watch.describe_arrivals() +
                                 " A rank that ends or hangs before its kolo::Runtime keeps the "
                                 "others waiting: see what it wrote.\n";
        static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
        std::_Exit(EXIT_FAILURE);
      }) {}

}  // namespace kolo::comm
