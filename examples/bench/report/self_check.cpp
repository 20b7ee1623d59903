#include "bench/report/self_check.hpp"

#include <cstdio>

#include "bench/report/choices.hpp"
#include "bench/report/machine.hpp"
#include "bench/report/probes.hpp"
#include "kolo/config.hpp"

namespace bench {
namespace {

constexpr std::size_t kInCache = std::size_t{128} << 10;
constexpr std::size_t kOutOfCache = std::size_t{128} << 20;

double as_gb(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void print_machine(const Machine& machine) {
  std::printf("processor    %s; %s\n", machine.cpu.c_str(), machine.system.c_str());
  std::printf("cores        %d, with %d hardware threads, that this process may use", machine.cores,
              machine.cpus);
  if (machine.quota > 0) std::printf("; its control group grants the time of %.1f", machine.quota);
  std::printf(
      "\n             more than %d ranks take turns on cores: each wait then costs a switch\n",
      machine.usable_cores());
  std::printf("memory       %.1f GB\n", as_gb(machine.memory_bytes));
}

void print_copying(const Machine& machine) {
  const auto print = [](const char* head, const char* where, std::size_t bytes, int cores) {
    const double one = copy_bytes_per_second(1, bytes) / 1e9;
    const double all = copy_bytes_per_second(cores, bytes) / 1e9;
    std::printf("%-12s %s, %s: %.1f GB/s on one core, %.1f GB/s on all %d\n", head, where,
                format_bytes(bytes).c_str(), one, all, cores);
  };
  print("copying", "in cache", kInCache, machine.usable_cores());
  print("", "out of cache", kOutOfCache, machine.usable_cores());
}

}  // namespace

void check_self(int ranks) {
  const kolo::Config config = kolo::Config::from_environment();
  const std::string window =
      why_no_window(config.tuning.staging_bytes);  // before there are threads
  const std::string single_copy = why_no_single_copy();
  const Machine machine = describe_machine();
  const Space space = shared_memory_space();
  const bool has_window = window.empty() && config.shared_memory;
  print_machine(machine);
  print_copying(machine);
  std::printf("/dev/shm     %.1f GB, of which %.1f GB are free; each rank takes %s a process set\n",
              as_gb(space.size_bytes), as_gb(space.free_bytes),
              format_bytes(config.tuning.staging_bytes).c_str());
  std::printf("windows      %s\n", window.empty() ? "can be made" : window.c_str());
  if (!config.shared_memory) std::printf("             but KOLO_SHARED_MEMORY is off\n");
  std::printf("single copy  %s\n", single_copy.empty()
                                       ? "ranks may read each other's private memory"
                                       : single_copy.c_str());
  std::printf("\nWhat Kolo chooses for %d ranks on this machine:\n%s", ranks,
              describe_choices(config, ranks, has_window && ranks > 1).c_str());
}

}  // namespace bench
