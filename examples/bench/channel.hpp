#pragma once

#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <sys/un.h>
#include <system_error>

#include <nlohmann/json.hpp>

namespace bench {

/// The bytes of the longest path that a socket can have.
inline constexpr std::size_t kLongestSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;

/// A file descriptor that is closed on destruction.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;  // it has one owner
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int number() const { return number_; }

 private:
  int number_;
};

/// Opens those of the standard streams that are closed, so that no socket or pipe gets their
/// number.
void open_standard_streams();

/// Messages between the controller and one rank: one JSON document per line, over a stream socket.
class Channel {
 public:
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}

  /// Connects to the socket at `path`. Throws std::system_error.
  static Channel connect(const std::string& path);

  int descriptor() const { return socket_.number(); }

  /// Returns false if the other side has closed.
  bool send(const nlohmann::json& message);

  /// Sleeps until a message arrives. Empty if the other side has closed.
  std::optional<nlohmann::json> receive();

 private:
  Descriptor socket_;
  std::string received_;
};

/// The environment variable with the path of the controller's socket.
inline constexpr const char* kSocketVariable = "KOLO_BENCH_SOCKET";

/// A listening socket in its own folder, which only this user can access. The destructor removes
/// both.
class Listener {
 public:
  /// Throws std::system_error.
  Listener();
  Listener(const Listener&) = delete;  // it removes its folder only once
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  const std::string& path() const { return path_; }
  int descriptor() const { return socket_.number(); }
  Channel accept() const;

 private:
  std::string folder_;
  std::string path_;
  Descriptor socket_;
};

}  // namespace bench
