#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "comm/file_descriptor.hpp"

namespace kolo::insight {

/// Answers GET /metrics, one scraper at a time, in a thread of its own, until it is destroyed.
class MetricsServer {
 public:
  /// @param is_open_metrics the scraper asks for that format
  using Text = std::function<std::string(bool is_open_metrics)>;

  /// Whether a value of KOLO_METRICS is an address, as ":9400" or "0.0.0.0:9400", and not a file.
  static bool is_address(std::string_view place);

  /// Listens before it returns. If it cannot, a warning says so, and the run goes on.
  /// @param address of the node's first rank; the others have the ports that follow
  MetricsServer(const std::string& address, int local_rank, Text text);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;  // its thread refers to it
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  void serve();
  void answer(const comm::FileDescriptor& peer) const;

  const Text text_;
  comm::FileDescriptor socket_;
  comm::FileDescriptor end_;  // readable: the thread ends
  std::thread thread_;        // the last member: uses the others
};

}  // namespace kolo::insight
