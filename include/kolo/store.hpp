#pragma once

#include <chrono>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace kolo {

/// Keys and values that some processes share, such as c10d's stores: how ranks of a world find each
/// other when the others do not take part. See Runtime::add_process_set.
///
/// The program provides it; each process has an object of its own. Kolo's keys begin with "kolo/"
/// and are never deleted. What an earlier Runtime, or job, has set does no harm; two that start at
/// the same time need stores, or prefixes, of their own. Calls may come from any thread, one at a
/// time for each object.
class Store {
 public:
  virtual ~Store() = default;

  /// Sets a key; a later value replaces an earlier one.
  virtual void set(const std::string& key, const std::string& value) = 0;

  /// Blocks until a process has set the key.
  ///
  /// @return its latest value; none if it has not been set within `timeout`
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::milliseconds timeout) = 0;
};

}  // namespace kolo
#pragma GCC visibility pop
