#include "bench/report/machine.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sched.h>
#include <set>
#include <string_view>
#include <sys/utsname.h>
#include <unistd.h>

namespace bench {
namespace {

std::string first_line_of(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

void count_cpus(Machine& machine) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::set<std::string> cores;
  machine.cpus = CPU_COUNT(&allowed);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string core =
        first_line_of(topology + "physical_package_id") + ':' + first_line_of(topology + "core_id");
    if (core == ":") core = std::to_string(cpu);  // the system does not say
    cores.insert(core);
  }
  machine.cores = static_cast<int>(cores.size());
}

/// The CPU quota of control groups v2 or v1, as seen from inside a container.
double time_quota() {
  double quota = 0;
  double period = 0;
  std::ifstream both("/sys/fs/cgroup/cpu.max");
  if (both >> quota >> period && period > 0) return quota / period;
  std::ifstream first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream second("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  return first >> quota && second >> period && quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int Machine::usable_cores() const {
  return quota > 0 ? std::min(cores, static_cast<int>(std::ceil(quota))) : cores;
}

Machine describe_machine() {
  Machine machine;
  machine.cpu = processor_name();
  utsname system{};
  if (::uname(&system) == 0) machine.system = std::string(system.sysname) + ' ' + system.release;
  count_cpus(machine);
  machine.quota = time_quota();
  machine.memory_bytes = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return machine;
}

}  // namespace bench
