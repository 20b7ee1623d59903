#include "common/descriptor.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace examples {

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

}  // namespace examples
