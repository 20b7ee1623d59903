#pragma once

namespace examples {

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

}  // namespace examples
