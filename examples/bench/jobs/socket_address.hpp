#pragma once

#include <cerrno>
#include <cstddef>
#include <string>
#include <sys/un.h>
#include <system_error>

namespace bench {

/// The bytes of the longest path that a socket can have.
inline constexpr std::size_t kLongestSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;

/// The address of the socket at `path`. Throws std::system_error if the path is too long: cut off,
/// it would name another socket.
inline sockaddr_un socket_address(const std::string& path) {
  if (path.size() > kLongestSocketPath) {
    throw std::system_error(ENAMETOOLONG, std::generic_category(),
                            "socket " + path + ", whose path may have at most " +
                                std::to_string(kLongestSocketPath) + " bytes");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, kLongestSocketPath);
  return address;
}

}  // namespace bench
