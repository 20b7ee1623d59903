#include "bench/channel.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace bench {
namespace {

/// The address of the socket at `path`. Throws std::system_error if the path is too long: cut off,
/// it would name another socket.
sockaddr_un socket_address(const std::string& path) {
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

constexpr const char* kFolder = "/kolo-bench-XXXXXX";
constexpr const char* kSocket = "/socket";

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// Creates a folder in TMPDIR, or in /tmp if TMPDIR is too long for a socket's path.
std::string make_folder() {
  const char* const wanted = std::getenv("TMPDIR");
  std::string parent = wanted != nullptr && *wanted != '\0' ? wanted : "/tmp";
  const std::size_t length =
      parent.size() + std::string(kFolder).size() + std::string(kSocket).size();
  if (length > kLongestSocketPath) parent = "/tmp";
  std::string folder = parent + kFolder;
  if (::mkdtemp(folder.data()) == nullptr)
    fail("cannot make " + folder + " (TMPDIR names another folder)");
  return folder;
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

void open_standard_streams() {
  while (::fcntl(STDERR_FILENO, F_GETFD) == -1) {
    if (::open("/dev/null", O_RDWR) < 0) return;
  }
}

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

Listener::Listener()
    : folder_(make_folder()),
      path_(folder_ + kSocket),
      socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = socket_address(path_);
  if (socket_.number() < 0 ||
      ::bind(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket_.number(), SOMAXCONN) != 0) {
    const int error = errno;
    ::rmdir(folder_.c_str());
    errno = error;
    fail(path_);
  }
}

Listener::~Listener() {
  ::unlink(path_.c_str());
  ::rmdir(folder_.c_str());
}

Channel Listener::accept() const {
  Descriptor socket(::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.number() < 0) fail("accept");
  return Channel(std::move(socket));
}

}  // namespace bench
