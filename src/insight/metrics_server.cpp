#include "insight/metrics_server.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/log.hpp"

namespace kolo::insight {
namespace {

constexpr std::chrono::seconds kPatience{2};  // with one scraper
constexpr std::size_t kLongestRequest = 16 << 10;
constexpr int kWaiting = 16;  // scrapers

struct Address {
  std::string host;  // empty: loopback
  int port = 0;      // 0: none, since it is no address
};

Address parse(std::string_view place) {
  Address address;
  const std::size_t colon = place.rfind(':');
  if (colon == std::string_view::npos || place.find('/') != std::string_view::npos) return address;
  const std::string_view digits = place.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size() || port < 1) return address;
  std::string_view host = place.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::string(host), port};
}

/// An open descriptor, or the reason why there is none.
comm::FileDescriptor listen_at(const Address& address, std::string& problem) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string host = address.host.empty() ? "127.0.0.1" : address.host;
  const int error =
      ::getaddrinfo(host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    problem = ::gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  comm::FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (socket.is_open() &&
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0 &&
      ::listen(socket.get(), kWaiting) == 0) {
    return socket;
  }
  problem = std::strerror(errno);
  return {};
}

/// The first line of a request and its headers; empty if they do not come in time.
std::string receive_head(int peer) {
  std::string head;
  std::array<char, 4096> part{};
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (head.find("\r\n\r\n") == std::string::npos) {
    const auto count = ::recv(peer, part.data(), part.size(), 0);
    if (count <= 0 || std::chrono::steady_clock::now() > until) return {};
    head.append(part.data(), static_cast<std::size_t>(count));
    if (head.size() > kLongestRequest) return {};
  }
  return head;
}

}  // namespace

bool MetricsServer::is_address(std::string_view place) { return parse(place).port != 0; }

MetricsServer::MetricsServer(const std::string& address, int local_rank, Text text)
    : text_(std::move(text)), end_(::eventfd(0, EFD_CLOEXEC)) {
  Address own = parse(address);
  own.port += local_rank;
  std::string problem;
  socket_ = listen_at(own, problem);
  if (socket_.is_open() && end_.is_open()) {
    thread_ = std::thread([this] { serve(); });
    return;
  }
  KOLO_LOG(Warn) << "KOLO_METRICS=" << address << ": this rank cannot listen on port " << own.port
                 << ": " << problem
                 << ". The run goes on without it. Choose a port from which on as many are free as "
                    "this host has ranks; the name of a file has a slash.";
}

MetricsServer::~MetricsServer() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(end_.get(), &one, sizeof(one));
  thread_.join();
}

void MetricsServer::serve() {
  std::array<pollfd, 2> watched{{{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = end_.get(), .events = POLLIN, .revents = 0}}};
  for (;;) {
    if (::poll(watched.data(), watched.size(), -1) < 0) {
      if (errno != EINTR) return;
      continue;
    }
    if (watched[1].revents != 0) return;
    const comm::FileDescriptor peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.is_open()) {
      answer(peer);
    } else {  // no descriptor is left
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

void MetricsServer::answer(const comm::FileDescriptor& peer) const {
  const timeval limit{.tv_sec = kPatience.count(), .tv_usec = 0};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    ::setsockopt(peer.get(), SOL_SOCKET, option, &limit, sizeof(limit));
  }
  const std::string head = receive_head(peer.get());
  const std::string_view line = std::string_view(head).substr(0, head.find("\r\n"));
  if (line.empty()) return;
  const bool is_head = line.starts_with("HEAD ");
  const std::string_view path = line.substr(std::min(line.find(' '), line.size() - 1) + 1);
  std::string status = "200 OK";
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  if (!is_head && !line.starts_with("GET ")) {
    status = "405 Method Not Allowed";
  } else if (path.starts_with("/metrics ") || path.starts_with("/metrics?")) {
    const bool is_open_metrics = head.find("application/openmetrics-text") != std::string::npos;
    type = is_open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                           : "text/plain; version=0.0.4; charset=utf-8";
    try {
      body = text_(is_open_metrics);
    } catch (const std::exception&) {  // no memory
      status = "503 Service Unavailable";
    }
  } else {
    status = "404 Not Found";
    body = "The metrics of this rank of Kolo are at /metrics.\n";
  }
  std::string answer = "HTTP/1.1 " + status + "\r\nContent-Type: " + type +
                       "\r\nContent-Length: " + std::to_string(body.size()) +
                       "\r\nConnection: close\r\n\r\n" + (is_head ? "" : body);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (std::string_view left = answer; !left.empty() && std::chrono::steady_clock::now() < until;) {
    const auto count = ::send(peer.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    left.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace kolo::insight
