#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "train/random/program.hpp"

/// Random training programs: how they run.
namespace kolo::random_training {

/// Calls of a program.
inline constexpr int kCalls = 100;

/// Where each rank is; may lie in memory that processes share.
struct Places {
  std::atomic<int> part[kMaxRanks]{};
  std::atomic<int> line[kMaxRanks]{};

  std::string text(const Program& program) const;
};

/// A folder that ends with this object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;  // it is removed once
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// For a part, before its ranks begin.
void set_default_dtype(const Setup& setup);

/// Makes this rank's calls of a part. Throws std::runtime_error, with the call, at the first that
/// ends otherwise than in one process.
void run_part(const Program& program, std::size_t part, Runtime& runtime,
              const std::filesystem::path& folder, Places& places);

/// Runs the program on ranks that are threads. Returns how it has failed; empty if it has not.
std::string run_in_threads(const Program& program, std::chrono::seconds timeout, Places& places);

}  // namespace kolo::random_training
