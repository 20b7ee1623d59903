#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "failure/record.hpp"
#include "kolo/collectives.hpp"

/// Steps of the scenarios of the program `victim`. Its driver sets the environment.
namespace kolo::test::scenarios {

inline std::string from_environment(const char* name, const char* otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

inline const std::string folder = from_environment("KOLO_TEST_FOLDER", ".");
inline const int victim = std::atoi(from_environment("KOLO_TEST_VICTIM", "0").c_str());
inline const std::chrono::microseconds moment(
    std::atoi(from_environment("KOLO_TEST_MOMENT_US", "0").c_str()));

inline int own_rank() {
  return std::atoi(
      from_environment("OMPI_COMM_WORLD_RANK", from_environment("PMI_RANK", "0").c_str()).c_str());
}
inline bool is_victim() { return own_rank() == victim; }

inline void die() {
  stamp(folder, "death");
  ::kill(::getpid(), SIGKILL);
}

/// Makes the victim die at the chosen time from now, whatever it is doing then.
inline void die_later() {
  if (!is_victim()) return;
  std::thread([] {
    std::this_thread::sleep_for(moment);
    die();
  }).detach();
}

inline TensorView view_of(std::vector<float>& values) {
  return {values.data(), DType::Float32, {static_cast<std::int64_t>(values.size())}, {}};
}

/// Waits until another rank has written the file with stamp().
inline void wait_for_stamp(const std::string& name) {
  while (!std::filesystem::exists(std::filesystem::path(folder) / name)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline void reduce(const std::string& name, std::size_t count = 100) {
  std::vector<float> values(count, 1.0f);
  allreduce(view_of(values), view_of(values), {.name = name});
}

inline void warm_up() {
  for (int step = 0; step < 5; ++step) reduce("x");
}

}  // namespace kolo::test::scenarios
