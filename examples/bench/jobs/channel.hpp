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

  /// To the socket that is bound to `path`. Throws std::system_error.
  static Channel connect(const std::string& path);

  int descriptor() const { return socket_.number(); }

  /// False where nobody listens any more.
  bool send(const nlohmann::json& message);

  /// Waits, asleep. Empty where the other side has closed.
  std::optional<nlohmann::json> receive();

 private:
  Descriptor socket_;
  std::string received_;
};

/// The environment's variable that names the socket to connect to.
inline constexpr const char* kSocketVariable = "KOLO_BENCH_SOCKET";

}  // namespace bench
