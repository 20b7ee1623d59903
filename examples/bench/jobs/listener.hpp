#pragma once

#include <string>

#include "bench/jobs/channel.hpp"

namespace bench {

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
