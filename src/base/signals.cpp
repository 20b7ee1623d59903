#include "base/signals.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <memory>
#include <mutex>
#include <new>
#include <semaphore.h>
#include <sstream>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/log.hpp"
#include "base/mutex.hpp"

namespace kolo {
namespace {

void* shared_page() {
  constexpr std::size_t kBytes = 64;
  void* const page =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page != MAP_FAILED ? page : ::operator new(kBytes);
}

// What handlers use. The semaphore has one count for each time that the thread is to wake up.
sem_t woken;
std::atomic<int> owner{0};  // the process that has the thread
std::atomic<int> questions{0};
std::atomic<int> end_signal{0};
std::atomic<int> preempted_by{0};           // a signal; -1: request_preemption()
std::atomic<std::int64_t> preempted_at{0};  // milliseconds, by the signal
// Shared with forked children, which see that the program has called preempted() since.
std::atomic<bool>* may_preempt = nullptr;
std::atomic<bool> is_over{false};  // the thread ends
static_assert(std::atomic<int>::is_always_lock_free);

// The stack of the main thread.
constexpr std::size_t kOwnFrames = 2;  // the handler, and what the kernel returns from it to
std::array<void*, 64> frames;
std::atomic<int> depth{0};
std::atomic<bool> wants_stack{false};

void die_by(int signal) {
  std::signal(signal, SIG_DFL);
  ::kill(::getpid(), signal);
}

std::int64_t milliseconds_now() {
  std::timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Notes that the process is preempted; false if a signal has said so before. A scheduler and the
/// launcher below it may both send the first one.
bool note_preemption(int signal) {
  constexpr std::int64_t kSame = 1000;
  const std::int64_t now = milliseconds_now();
  int known = preempted_by;
  if (known <= 0 && preempted_by.compare_exchange_strong(known, signal)) {
    preempted_at = now;
    return true;
  }
  return now < preempted_at + kSame;
}

/// Whether a scheduler or a launcher sends a signal to a forked child of the rank: they signal
/// workers of a DataLoader, too, without which the rank would not come to the step at which it
/// saves.
bool is_for_the_rank(const siginfo_t& info) {
  return *may_preempt && ::getppid() == owner && info.si_pid != owner && info.si_pid != ::getpid();
}

void handle(int signal, siginfo_t* info, void* /*context*/) {
  const int before = errno;
  if (::getpid() != owner) {
    if (signal != SIGUSR2 && !is_for_the_rank(*info)) die_by(signal);
  } else if (signal == SIGUSR2 && ::gettid() == ::getpid() && wants_stack.exchange(false)) {
    depth = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  } else if (signal == SIGUSR2) {
    ++questions;
    sem_post(&woken);
  } else if ((*may_preempt && note_preemption(signal)) || end_signal.exchange(signal) == 0) {
    sem_post(&woken);
  } else {
    die_by(signal);  // one ends it already, and takes too long
  }
  errno = before;
}

struct Listeners {
  Mutex lock;
  std::vector<const Signals::Answer*> answers KOLO_GUARDED_BY(lock);
  std::vector<int> handled KOLO_GUARDED_BY(lock);
  std::thread thread KOLO_GUARDED_BY(lock);
};

/// Never destroyed: the thread may live longer than the process's static objects.
Listeners& listeners() {
  static Listeners& only = *new Listeners;
  return only;
}

std::string name_of(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGUSR1 ? "SIGUSR1" : "SIGUSR2";
}

void answer_all(int signal) {
  Listeners& all = listeners();
  while (!all.lock.try_lock()) {
    if (is_over) return;  // the destructor has it, and waits for this thread
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Lock lock(all.lock, std::adopt_lock);
  for (const auto* answer : all.answers) (*answer)("requested by " + name_of(signal));
}

/// `has_said`: the log that this process is preempted.
void listen(bool has_said) {
  int answered = 0;
  for (;;) {
    while (sem_wait(&woken) != 0) {  // interrupted
    }
    if (is_over) return;
    if (std::exchange(answered, questions.load()) != answered) answer_all(SIGUSR2);
    if (const int signal = preempted_by; signal > 0 && !std::exchange(has_said, true)) {
      KOLO_LOG(Warn) << name_of(signal)
                     << ": preempted() is true on all ranks from the step on that they agree on; a "
                        "further signal, more than a second later, ends this rank at once";
    }
    if (const int signal = end_signal; signal > 0) {
      answer_all(signal);
      die_by(signal);
    }
  }
}

bool is_ours(int signal) {
  struct sigaction current = {};
  return sigaction(signal, nullptr, &current) == 0 && current.sa_sigaction == &handle;
}

/// "kolo::allreduce(…)", or "libc.so.6+0xe1234" if the function has no name.
std::string describe(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0) return "?";
  if (info.dli_sname == nullptr) {
    const std::string_view path = info.dli_fname;
    std::ostringstream text;
    text << path.substr(path.rfind('/') + 1) << "+0x" << std::hex
         << static_cast<char*>(address) - static_cast<char*>(info.dli_fbase);
    return text.str();
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return name != nullptr ? name.get() : info.dli_sname;
}

}  // namespace

Signals::Signals(std::initializer_list<int> signals, Answer answer) : answer_(std::move(answer)) {
  Listeners& all = listeners();
  const Lock lock(all.lock);
  if (may_preempt == nullptr) may_preempt = new (shared_page()) std::atomic<bool>(false);
  if (all.answers.empty()) {
    is_over = false;
    end_signal = 0;
    questions = 0;
    sem_init(&woken, 0, 0);
    ::backtrace(frames.data(), 1);  // loads what it needs, which a handler must not
    owner = ::getpid();
    all.thread = std::thread(listen, preempted_by != 0);
  }
  all.answers.push_back(&answer_);
  for (const int signal : signals) {
    struct sigaction current = {};
    if (sigaction(signal, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) continue;
    struct sigaction ours = {};
    ours.sa_sigaction = &handle;
    ours.sa_flags = SA_RESTART | SA_SIGINFO;
    // A question for the stack of the main thread is not to find this handler there.
    sigfillset(&ours.sa_mask);
    if (sigaction(signal, &ours, nullptr) == 0) all.handled.push_back(signal);
  }
}

Signals::~Signals() {
  if (::getpid() != owner) return;
  Listeners& all = listeners();
  const Lock lock(all.lock);
  std::erase(all.answers, &answer_);
  if (!all.answers.empty()) return;
  for (const int signal : std::exchange(all.handled, {})) {
    if (is_ours(signal)) std::signal(signal, SIG_DFL);
  }
  *may_preempt = false;
  is_over = true;
  sem_post(&woken);
  all.thread.join();
  if (end_signal != 0) die_by(end_signal);  // it came too late for the thread
}

void Signals::let_preempt() { *may_preempt = true; }

void Signals::request_preemption() {
  int none = 0;
  preempted_by.compare_exchange_strong(none, -1);
}

std::vector<std::string> Signals::main_thread_stack() {
  constexpr std::chrono::milliseconds kPatience{200};
  static Mutex one_at_a_time;
  const Lock lock(one_at_a_time);
  std::vector<std::string> stack;
  if (::getpid() != owner || ::gettid() == ::getpid() || !is_ours(SIGUSR2)) return stack;
  depth = 0;
  wants_stack = true;  // also of an answer that comes too late, which is no question
  if (::tgkill(::getpid(), ::getpid(), SIGUSR2) != 0) return stack;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (depth == 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (auto i = kOwnFrames; i < static_cast<std::size_t>(depth); ++i) {
    stack.push_back(describe(frames[i]));
  }
  return stack;
}

bool Signals::is_preempted() { return preempted_by != 0; }

}  // namespace kolo
