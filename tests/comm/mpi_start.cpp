// How Kolo starts, joins and leaves MPI: one program per way, as a process can start MPI only once.
// Exit code 0 on success; mpirun reports a process that ends without finalising MPI.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>

#include <mpi.h>

#include "comm/launcher.hpp"
#include "comm/make_world.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/mpi_environment.hpp"
#include "comm/mpi_world.hpp"
#include "comm/self_world.hpp"
#include "kolo/error.hpp"

namespace {

using kolo::comm::MpiComm;
using kolo::comm::MpiWorld;

int failures = 0;

void expect(bool condition, const char* text) {
  if (condition) return;
  std::fprintf(stderr, "expected: %s\n", text);
  ++failures;
}

bool is_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

template <class Error>
std::string error_of_joining() {
  try {
    const MpiWorld world(kolo::Config{});
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Kolo starts MPI, keeps it for the next world, and finalises it when the process ends.
void start() {
  expect(!is_initialized(), "MPI is not started before it is needed");
  {
    const auto world = kolo::comm::make_world(kolo::Config{});
  }
  expect(is_initialized() && !is_finalized(), "MPI outlives the first world");
  const auto again = kolo::comm::make_world(kolo::Config{});
  expect(dynamic_cast<MpiWorld*>(again.get()) != nullptr, "a second world over MPI");
}

/// A world that is destroyed after main, like that of kolo::init without a shutdown.
void start_static() {
  static std::unique_ptr<MpiWorld> world;  // destroyed last: later objects are destroyed first
  std::atexit([] {
    if (!is_finalized()) return;
    std::fputs("MPI was finalised under a living world\n", stderr);
    std::_Exit(1);
  });
  world = std::make_unique<MpiWorld>(kolo::Config{});
}

/// The program starts and finalises MPI; Kolo's owners of handles are destroyed later.
void join() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  {
    const MpiWorld world(kolo::Config{});
  }
  expect(!is_finalized(), "Kolo leaves the program's MPI alone");
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_SELF, &copy);
  std::optional<MpiComm> owner(kolo::comm::mpi().comm_f2c(MPI_Comm_c2f(copy)));
  MPI_Finalize();
  owner.reset();  // would abort if it freed its handle now
  const std::string text = error_of_joining<kolo::InvalidArgument>();
  expect(text.find("finalised") != std::string::npos, "an error that says MPI was finalised");
}

/// The program starts MPI without threads: an error on each rank says what to write instead.
void join_single() {
  MPI_Init(nullptr, nullptr);
  int provided = 0;
  MPI_Query_thread(&provided);
  const std::string text = error_of_joining<kolo::InvalidArgument>();
  if (provided < MPI_THREAD_SERIALIZED) {
    expect(text.find("initialized MPI with MPI_THREAD_SINGLE, but Kolo needs "
                     "MPI_THREAD_SERIALIZED") != std::string::npos,
           text.c_str());
    expect(text.find("MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided)") !=
               std::string::npos,
           text.c_str());
  } else {
    expect(text.empty(), "no error, since this MPI gives more than it was asked for");
  }
  MPI_Finalize();
}

/// Rank 1 constructs no world: rank 0 waits for it for a second.
void late() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    kolo::Config config;
    config.start_timeout = std::chrono::seconds(1);
    try {
      const MpiWorld world(config);
      expect(false, "an error, as rank 1 does not come");
    } catch (const kolo::TimeoutError& error) {
      const std::string text = error.what();
      expect(text.find("within 1 s (KOLO_START_TIMEOUT)") != std::string::npos, "how long");
      expect(text.find("Of 2 ranks, 1 has come on this host (rank 0); rank 1 has not come") !=
                 std::string::npos,
             text.c_str());
    }
    MPI_Send(nullptr, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
  } else {
    MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);  // the one that rank 0 waited for
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MPI_Finalize();
}

/// Rank 1 knows of a loss, after which it waits for nobody; rank 0 has not learned of it.
void freed_after_loss() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  {
    const auto world = kolo::comm::make_world(kolo::Config{}, MPI_Comm_c2f(copy));
  }
  if (rank == 1) kolo::comm::mpi_environment::mark_broken();
  MPI_Comm_free(&copy);
  MPI_Finalize();
}

volatile std::sig_atomic_t broken_pipes = 0;

/// Writes to a pipe that nobody reads, as to a connection whose other end has died.
/// @return errno, or 0
int break_pipe() {
  int ends[2]{};
  if (::pipe(ends) != 0) return errno;
  ::close(ends[0]);
  const int error = ::write(ends[1], "x", 1) < 0 ? errno : 0;
  ::close(ends[1]);
  return error;
}

/// Kolo ignores SIGPIPE, unless the program handles it.
void broken_pipe() {
  std::signal(SIGPIPE, [](int) { broken_pipes = broken_pipes + 1; });
  const MpiWorld world(kolo::Config{});
  expect(break_pipe() == EPIPE && broken_pipes == 1, "the program's handler is kept");
  std::signal(SIGPIPE, SIG_DFL);
  const MpiWorld another(kolo::Config{});
  expect(break_pipe() == EPIPE, "a broken pipe does not end the process");
}

/// Rank 1 does not start MPI: the others wait in MPI_Init.
void never() {
  const auto launcher = kolo::comm::find_launcher();
  // mpirun ends this rank together with the others; if it ended by itself, mpirun might end them
  // first.
  if (launcher && launcher->rank == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
  kolo::Config config;
  config.start_timeout = std::chrono::seconds(2);
  const auto world = kolo::comm::make_world(config);
}

/// The environment shows a launcher with several processes, but MPI knows only one.
void singleton() {
  try {
    const auto world = kolo::comm::make_world(kolo::Config::from_environment());
    std::printf("a world of %d %s MPI\n", world->topology().size,
                is_initialized() ? "with" : "without");
  } catch (const kolo::InvalidArgument& error) {
    std::printf("%s\n", error.what());
  }
}

/// A rank starts another process, which inherits its place in the job.
void nested() {
  const auto world = kolo::comm::make_world(kolo::Config{});
  if (world->topology().rank != 1) return;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  expect(
      std::system((self + " singleton && KOLO_LAUNCHER=none " + self + " singleton").c_str()) == 0,
      "two processes end well");
}

/// Makes a communicator before MPI has been started.
void too_early() {
  std::string text;
  try {
    const auto world = kolo::comm::make_world(kolo::Config{}, 0);
  } catch (const kolo::InvalidArgument& error) {
    text = error.what();
  }
  expect(text.find("MPI is not running") != std::string::npos, "an error with what to call");
}

/// Without a launcher there is one rank and no MPI.
void alone() {
  const auto world = kolo::comm::make_world(kolo::Config{});
  expect(dynamic_cast<kolo::comm::SelfWorld*>(world.get()) != nullptr, "a world of one");
  expect(!is_initialized(), "MPI is not touched");
}

}  // namespace

int main(int argc, char** argv) {
  struct Scenario {
    const char* name;
    void (*run)();
  };
  constexpr Scenario kScenarios[] = {
      {"start", start},         {"start_static", start_static},
      {"join", join},           {"join_single", join_single},
      {"late", late},           {"broken_pipe", broken_pipe},
      {"never", never},         {"freed_after_loss", freed_after_loss},
      {"singleton", singleton}, {"too_early", too_early},
      {"alone", alone},         {"nested", nested}};
  for (const Scenario& scenario : kScenarios) {
    if (argc == 2 && std::strcmp(argv[1], scenario.name) == 0) {
      scenario.run();
      return failures;
    }
  }
  std::fputs("which way?\n", stderr);
  return 2;
}
