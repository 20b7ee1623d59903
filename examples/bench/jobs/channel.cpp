#include "bench/jobs/channel.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <system_error>
#include <utility>

#include "bench/jobs/socket_address.hpp"

namespace bench {

Channel Channel::connect(const std::string& path) {
  const sockaddr_un address = socket_address(path);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.number() < 0 || ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address),
                                       sizeof address) != 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  return Channel(std::move(socket));
}

bool Channel::send(const nlohmann::json& message) {
  const std::string line = message.dump() + '\n';
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t bytes =
        ::send(socket_.number(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (bytes < 0 && errno != EINTR) return false;
    if (bytes > 0) sent += static_cast<std::size_t>(bytes);
  }
  return true;
}

std::optional<nlohmann::json> Channel::receive() {
  std::array<char, 4096> part{};
  std::size_t end = received_.find('\n');
  while (end == std::string::npos) {
    const ssize_t bytes = ::recv(socket_.number(), part.data(), part.size(), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return std::nullopt;
    const std::size_t before = received_.size();
    received_.append(part.data(), static_cast<std::size_t>(bytes));
    end = received_.find('\n', before);
  }
  const std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return nlohmann::json::parse(line);
}

}  // namespace bench
