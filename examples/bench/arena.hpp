#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace bench {

/// Memory of one rank that grows with what is asked of it.
class Arena {
 public:
  using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

  /// The CPU's, private: at multiples of 4096, and all of it has been written.
  Arena();
  explicit Arena(Allocate allocate);

  /// At least `bytes`. Ends what was there before, unless that is large enough.
  std::byte* reserve(std::size_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  Allocate allocate_;
  std::shared_ptr<std::byte> memory_;
  std::size_t size_bytes_ = 0;
};

}  // namespace bench
