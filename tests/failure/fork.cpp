// Children that a rank forks may end in any way: the ranks continue. Usage: fork <way>. Each way is
// a separate program, as a child inherits the whole state of the process.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/insight.hpp"

namespace {

int failures = 0;

void expect(bool condition, const std::string& text) {
  if (condition) return;
  std::fprintf(stderr, "expected: %s\n", text.c_str());
  ++failures;
}

void expect_sum_works() {
  const int rank = kolo::rank();
  const int size = kolo::size();
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 7) + static_cast<float>(rank);
  }
  const kolo::TensorView view{values.data(), kolo::DType::Float32, {1000}, {}};
  kolo::allreduce(view, view, {.op = kolo::ReduceOp::Sum, .name = "x"});
  const int ranks = size * (size - 1) / 2;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float expected =
        static_cast<float>(size) * static_cast<float>(i % 7) + static_cast<float>(ranks);
    if (values[i] != expected) return expect(false, "the sum of all ranks");
  }
}

/// Returns how the child ended.
int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

bool exited_successfully(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

/// The child ends with an uncaught exception.
void throws() {
  const kolo::Runtime runtime;
  expect_sum_works();
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    throw std::runtime_error("of the child alone");
  }
  const int status = wait_for(child);
  expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "the child aborts");
  for (int i = 0; i < 100; ++i) expect_sum_works();
}

/// The child calls exit() while the process owns a Runtime.
void exits() {
  kolo::init();
  expect_sum_works();
  const pid_t child = ::fork();
  if (child == 0) std::exit(0);
  expect(exited_successfully(wait_for(child)), "the child exits");
  for (int i = 0; i < 100; ++i) expect_sum_works();
}

/// The child destroys its copies of a Runtime and of a handle in flight, and returns from main.
void returns() {
  const kolo::Runtime runtime;
  expect_sum_works();
  std::vector<float> values(100);
  const kolo::TensorView view{values.data(), kolo::DType::Float32, {100}, {}};
  kolo::Handle handle = kolo::allreduce_async(view, view, {.name = "under way"});
  const pid_t child = ::fork();
  if (child == 0) return;
  expect(exited_successfully(wait_for(child)), "the child returns");
  handle.wait();
  for (int i = 0; i < 100; ++i) expect_sum_works();
}

template <class Call>
void expect_refused(const char* what, Call call) {
  try {
    call();
  } catch (const kolo::InvalidArgument& error) {
    return expect(std::string(error.what()).find("forked") != std::string::npos,
                  std::string(what) + " says why: " + error.what());
  }
  expect(false, std::string(what) + " is refused");
}

/// The child uses Kolo.
void uses() {
  kolo::Runtime runtime;
  expect_sum_works();
  const pid_t child = ::fork();
  if (child == 0) {
    expect_refused("an operation", expect_sum_works);
    expect_refused("another Runtime", [] { const kolo::Runtime another; });
    // A thread of the parent may hold a lock at the fork, and does not exist here.
    expect_refused("metrics() of a set", [&] { runtime.world().metrics(); });
    expect_refused("metrics()", [] { kolo::metrics(); });
    expect_refused("mark()", [] { kolo::mark("here"); });
    runtime.shutdown();
    std::exit(failures);
  }
  expect(exited_successfully(wait_for(child)), "the child is refused");
  for (int i = 0; i < 100; ++i) expect_sum_works();
}

const std::map<std::string, void (*)()> ways{
    {"throws", throws}, {"exits", exits}, {"returns", returns}, {"uses", uses}};

}  // namespace

int main(int argc, char** argv) {
  const auto way = argc == 2 ? ways.find(argv[1]) : ways.end();
  if (way == ways.end()) {
    std::fputs("which way?\n", stderr);
    return 2;
  }
  way->second();
  return failures;
}
