#include "bench/jobs/listener.hpp"

#include <cerrno>
#include <cstdlib>
#include <sys/socket.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>

#include "bench/jobs/socket_address.hpp"

namespace bench {
namespace {

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
