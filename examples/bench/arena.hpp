#pragma once

#include <cstddef>
#include <memory>

namespace bench {

/// Private memory that grows with what is asked of it.
class Arena {
 public:
  /// At least `bytes`, at a multiple of 4096; all of it has been written. Ends what was there before,
  /// unless that is large enough.
  std::byte* reserve(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_bytes_ = 0;
};

}  // namespace bench
