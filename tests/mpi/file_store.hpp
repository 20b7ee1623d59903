#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "kolo/store.hpp"

namespace kolo::test {

/// A store in a folder that all of its processes see: a file for each key.
class FileStore final : public Store {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path unfinished = path_of(key) + ".unfinished";
    std::ofstream(unfinished) << value;
    std::filesystem::rename(unfinished, path_of(key));
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    do {
      if (std::ifstream file(path_of(key)); file) {
        return std::string(std::istreambuf_iterator<char>(file), {});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (std::chrono::steady_clock::now() < end);
    return std::nullopt;
  }

 private:
  std::string path_of(const std::string& key) const {
    return folder_ / std::to_string(std::hash<std::string>{}(key));
  }

  const std::filesystem::path folder_;
};

}  // namespace kolo::test
