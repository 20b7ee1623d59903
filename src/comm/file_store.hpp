#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "kolo/store.hpp"

namespace kolo::comm {

/// A folder with a file for each key, which whoever starts a job removes afterwards.
class FileStore final : public Store {
 public:
  /// Makes the folder unless it is there. Throws BackendError.
  explicit FileStore(std::filesystem::path folder);

  /// Throws BackendError.
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override;

 private:
  std::filesystem::path file_of(const std::string& key) const;

  const std::filesystem::path folder_;
};

}  // namespace kolo::comm
