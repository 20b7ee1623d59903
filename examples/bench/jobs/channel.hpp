#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "common/descriptor.hpp"

namespace bench {

using examples::Descriptor;

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

}  // namespace bench
