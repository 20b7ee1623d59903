#include "bench/machine.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <sched.h>
#include <set>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "bench/channel.hpp"
#include "bench/workload.hpp"
#include "kolo/config.hpp"
#include "ops/select.hpp"

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

namespace {

using namespace kolo;

// Facts about the machine that are found by experiment.

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kCopying = 100ms;

std::string text_of(int error) { return std::strerror(error); }

/// Runs `function` in a new process; it returns an error number, 0 for none.
pid_t run_in_child(const std::function<int()>& function) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(function());
  return child;
}

int result_of(pid_t child) {
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return errno;
  return WIFEXITED(status) ? WEXITSTATUS(status) : EFAULT;
}

/// Copies until `end`; returns how many bytes.
double copy_until(Clock::time_point end, std::byte* to, const std::byte* from, std::size_t bytes) {
  double copied = 0;
  while (Clock::now() < end) {
    std::memcpy(to, from, bytes);
    asm volatile("" : : "r"(to) : "memory");  // keeps the compiler from removing the copy
    copied += static_cast<double>(bytes);
  }
  return copied;
}

/// Maps memory that another process has open as `descriptor`; returns an error number, 0 for none.
int open_of_other(pid_t owner, int descriptor, std::size_t bytes) {
  const std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(descriptor);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.number() < 0) return errno;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  return memory == MAP_FAILED ? errno : 0;
}

struct Space {
  std::size_t size_bytes;
  std::size_t free_bytes;
};

/// The bytes per second that `threads` threads copy together, each between two buffers of `bytes`.
double copy_bytes_per_second(int threads, std::size_t bytes) {
  std::vector<GrowingBuffer> buffers(2 * static_cast<std::size_t>(threads));
  for (GrowingBuffer& buffer : buffers) buffer.reserve(bytes);
  std::vector<double> copied(static_cast<std::size_t>(threads));
  const auto start = Clock::now();
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < copied.size(); ++i) {
      workers.emplace_back([&, i] {
        copied[i] = copy_until(start + kCopying, buffers[2 * i].reserve(bytes),
                               buffers[2 * i + 1].reserve(bytes), bytes);
      });
    }
  }
  double sum = 0;
  for (const double one : copied) sum += one;
  return sum / std::chrono::duration<double>(Clock::now() - start).count();
}

/// The space of the file system that holds shared memory; zeros if there is none.
Space shared_memory_space() {
  struct statvfs space{};
  if (::statvfs("/dev/shm", &space) != 0) return {0, 0};
  return {space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize};
}

/// Why a process cannot create shared memory of `bytes` that another process can map; empty if it
/// can.
std::string why_no_window(std::size_t bytes) {
  const Descriptor file(::open("/dev/shm", O_TMPFILE | O_EXCL | O_RDWR, S_IRUSR | S_IWUSR));
  if (file.number() < 0) return "open a file without a name in /dev/shm: " + text_of(errno);
  if (const int error = ::posix_fallocate(file.number(), 0, static_cast<off_t>(bytes))) {
    return "/dev/shm has no room for " + std::to_string(bytes) + " bytes: " + text_of(error);
  }
  const pid_t self = ::getpid();
  const int error =
      result_of(run_in_child([&] { return open_of_other(self, file.number(), bytes); }));
  return error == 0 ? "" : "a process cannot open another one's: " + text_of(error);
}

/// Why two child processes cannot read each other's private memory, which lets one copy move a
/// message; empty if they can.
std::string why_no_single_copy() {
  std::array<int, 2> ready{};
  if (::pipe2(ready.data(), O_CLOEXEC) != 0) return "pipe2: " + text_of(errno);
  const Descriptor read_end(ready[0]);
  const Descriptor write_end(ready[1]);
  char value = 0;
  const pid_t owner = run_in_child([&] {
    value = 1;
    if (::write(write_end.number(), &value, 1) != 1) return EPIPE;
    for (;;) ::pause();
  });
  char note = 0;
  if (owner < 0 || ::read(read_end.number(), &note, 1) != 1) return "fork: " + text_of(errno);
  const pid_t reader = run_in_child([&] {
    char copy = 0;
    const iovec to{&copy, 1};
    const iovec from{&value, 1};
    if (::process_vm_readv(owner, &to, 1, &from, 1, 0) != 1) return errno;
    return copy == 1 ? 0 : EFAULT;
  });
  const int error = result_of(reader);
  ::kill(owner, SIGKILL);
  result_of(owner);
  return error == 0 ? "" : "process_vm_readv: " + text_of(error);
}

// What Kolo would choose.

/// Formats a size as in "64 KB", with powers of 1024.
std::string format_bytes(std::size_t bytes) {
  constexpr std::array kUnits{"B", "KB", "MB", "GB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return std::to_string(bytes) + ' ' + kUnits[unit];
}

constexpr std::size_t kSmallest = 64;
constexpr std::size_t kLargest = std::size_t{1} << 30;

std::string_view reason_for(const Algorithm& algorithm) {
  switch (algorithm.needs) {
    case Needs::PeerBuffers: return "every rank works on all ranks' memory where it lies";
    case Needs::Window: return "through memory that the ranks share";
    case Needs::Nodes: return "inside nodes through shared memory, between them by messages";
    case Needs::Messages: return "by messages";
  }
  return "";
}

/// "a (why) up to 2 KB, then b (why)".
std::string describe_by_size(const ops::Registry& registry, ops::Situation situation) {
  std::string text;
  const Algorithm* last = nullptr;
  std::size_t last_bytes = 0;
  for (std::size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    situation.bytes = bytes;
    const Algorithm& algorithm = ops::select(registry, situation);
    if (&algorithm != last) {
      if (last != nullptr) text += " up to " + format_bytes(last_bytes) + ", then ";
      text += std::string(algorithm.name) + " (" + std::string(reason_for(algorithm)) + ')';
      last = &algorithm;
    }
    last_bytes = bytes;
  }
  return text;
}

bool has_window_algorithm(const ops::Registry& registry, Collective collective) {
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (algorithm.collective == collective && algorithm.needs == Needs::PeerBuffers) return true;
  }
  return false;
}

/// Which algorithms Kolo would choose for `ranks` ranks on this machine, by collective, placement
/// and size, and why. `has_window`: whether they can share memory.
std::string describe_choices(const Config& config, int ranks, bool has_window) {
  ops::Registry registry;
  registry.prefer(config.algorithm);
  std::string text;
  for (std::size_t number = 0; number < kOperationNames.size(); ++number) {
    const auto operation = static_cast<Operation>(number);
    ops::Situation situation{
        .collective = collective_of(operation), .size = ranks, .has_window = has_window};
    const std::string wanted(registry.preferred(situation.collective));
    text += "  " + std::string(name_of(operation)) +
            (wanted.empty() ? "" : ", where possible " + wanted + ", as the environment asks") +
            "\n    private memory: " + describe_by_size(registry, situation) + '\n';
    if (!has_window || !has_window_algorithm(registry, situation.collective)) continue;
    situation.has_peer_buffers = true;
    text += "    shared memory: " + describe_by_size(registry, situation) + '\n';
  }
  return text;
}

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

std::string or_empty(const std::string& text) { return text.empty() ? "empty" : text; }

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

std::string config_table() {
  std::string text = "Kolo's settings: variables of the environment, the same on all ranks.\n";
  for (const kolo::ConfigEntry& setting : kolo::describe(kolo::Config::from_environment())) {
    const bool is_set = std::getenv(setting.variable.c_str()) != nullptr;
    text += '\n' + setting.variable + " = " + or_empty(setting.value) +
            (is_set ? "  (from the environment)\n" : "  (default)\n");
    text += "  " + setting.help + '\n';
    text += "  " + setting.unit + "; " + setting.range + "; default " +
            or_empty(setting.default_value) + '\n';
  }
  return text;
}

}  // namespace bench
