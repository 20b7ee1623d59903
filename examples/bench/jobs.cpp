#include "bench/jobs.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "bench/rank.hpp"
#include "kolo/error.hpp"

namespace bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kGrace = 5s;
constexpr auto kPause = 5ms;

std::string describe(int status) {
  if (WIFEXITED(status)) return "exit status " + std::to_string(WEXITSTATUS(status));
  return "killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
         ::strsignal(WTERMSIG(status)) + ")";
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  for (const auto& [name, value] : added) {
    std::erase_if(environment,
                  [&name = name](const auto& other) { return other.starts_with(name + '='); });
    environment.push_back(name + '=' + value);
  }
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Runs in the child, which may call only async-signal-safe functions. Returns only if exec fails.
void become(int input, const sigset_t& mask, pid_t parent, char* const* arguments,
            char* const* variables) {
  ::setpgid(0, 0);  // Ctrl-C does not reach it: we end it ourselves
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it died before prctl()
  ::dup2(input, STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execvpe(arguments[0], arguments, variables);
}

constexpr int kStartPause = 100;  // ms between checks that mpirun is still running
constexpr auto kExitTimeout = 30s;
constexpr auto kReportTimeout = 2s;  // for mpirun to end after one of its ranks has

ChildProcess::Variables with_socket(ChildProcess::Variables environment, const Listener& listener) {
  environment.emplace_back(kSocketVariable, listener.path());
  return environment;
}

std::vector<pollfd> to_watch(const std::vector<int>& descriptors) {
  std::vector<pollfd> watched;
  for (const int descriptor : descriptors) watched.push_back({descriptor, POLLIN, 0});
  return watched;
}

}  // namespace

Interrupts::Interrupts() {
  sigset_t taken;
  sigemptyset(&taken);
  // SIGPIPE: the reader of our output has exited.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) sigaddset(&taken, signal);
  pthread_sigmask(SIG_BLOCK, &taken, &before_);
  signals_ = Descriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
}

Interrupts::~Interrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void Interrupts::check() const {
  signalfd_siginfo info{};
  if (::read(signals_.number(), &info, sizeof info) != sizeof info) return;
  throw Interrupted(static_cast<int>(info.ssi_signo));
}

ChildProcess::ChildProcess(const std::vector<std::string>& command, const Variables& environment,
                           const Interrupts& interrupts) {
  std::vector<std::string> words = command;
  std::vector<std::string> variables = environment_with(environment);
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> settings = pointers_to(variables);
  const auto fail = [&](int error) {
    throw CannotStart("cannot start " + words.front() + ": " + std::strerror(error));
  };
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::array<int, 2> ends{};
  if (nothing.number() < 0 || ::pipe2(ends.data(), O_CLOEXEC) != 0) fail(errno);
  const Descriptor failure(ends[0]);
  Descriptor failed(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    become(nothing.number(), interrupts.blocked_before(), parent, arguments.data(),
           settings.data());
    const int error = errno;
    [[maybe_unused]] const auto written = ::write(failed.number(), &error, sizeof error);
    ::_exit(127);
  }
  if (pid_ < 0) fail(errno);
  failed = Descriptor();
  int error = 0;
  if (::read(failure.number(), &error, sizeof error) > 0) {
    ::waitpid(pid_, nullptr, 0);
    fail(error);
  }
}

std::optional<std::string> ChildProcess::wait_for(std::chrono::milliseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (!ending_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      ending_ = describe(status);
    } else if (std::chrono::steady_clock::now() >= end) {
      break;
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  return ending_;
}

void ChildProcess::ask_to_end() {
  if (!ending_) ::kill(pid_, SIGTERM);
}

ChildProcess::~ChildProcess() {
  ask_to_end();
  if (!wait_for(kGrace)) {
    ::kill(pid_, SIGKILL);
    wait_for(kGrace);
  }
}

RemoteJob::RemoteJob(std::string name, const std::vector<std::string>& command,
                     ChildProcess::Variables environment, int ranks, const Interrupts& interrupts)
    : name_(std::move(name)),
      interrupts_(interrupts),
      listener_(std::make_unique<Listener>()),
      mpirun_(command, with_socket(std::move(environment), *listener_), interrupts) {
  accept_ranks(ranks);
  listener_.reset();
}

RemoteJob::~RemoteJob() {
  mpirun_.ask_to_end();
  // A rank in the middle of a collective does not even notice that its mpirun has exited.
  for (const auto& rank : ranks_) {
    ::syscall(SYS_pidfd_send_signal, rank->process.number(), SIGKILL, nullptr, 0);
  }
}

void RemoteJob::accept_ranks(int ranks) {
  std::vector<Channel> unidentified;
  std::vector<std::unique_ptr<Rank>> found(static_cast<std::size_t>(ranks));
  while (std::ranges::any_of(found, [](const auto& rank) { return rank == nullptr; })) {
    std::vector<int> descriptors{listener_->descriptor(), interrupts_.descriptor()};
    for (const Channel& channel : unidentified) descriptors.push_back(channel.descriptor());
    std::vector<pollfd> watched = to_watch(descriptors);
    ::poll(watched.data(), watched.size(), kStartPause);
    interrupts_.check();
    for (std::size_t i = unidentified.size(); i-- > 0;) {
      if (watched[i + 2].revents == 0) continue;
      Channel channel = std::move(unidentified[i]);
      unidentified.erase(unidentified.begin() + static_cast<std::ptrdiff_t>(i));
      add_rank(std::move(channel), ranks, found);
    }
    if (watched[0].revents != 0) unidentified.push_back(listener_->accept());
    if (const auto ending = mpirun_.wait_for(0ms)) {
      throw JobError(name_ + ": mpirun ended before its ranks had started: " + *ending);
    }
  }
  ranks_ = std::move(found);
}

void RemoteJob::add_rank(Channel channel, int ranks, std::vector<std::unique_ptr<Rank>>& found) {
  const nlohmann::json hello = receive(channel, "a rank");
  const auto number = hello.at("rank").get<std::size_t>();
  if (hello.at("ranks") != ranks) {
    throw JobError(name_ + ": mpirun was to start " + std::to_string(ranks) +
                   " ranks that know each other, but there are " + hello.at("ranks").dump() +
                   ": does it belong to the MPI that this program was built with?");
  }
  if (number == 0) {
    gpu_ = hello.at("gpu");
    mpi_ = hello.at("mpi");
  }
  const long process = ::syscall(SYS_pidfd_open, hello.at("pid").get<pid_t>(), 0);
  found.at(number) =
      std::make_unique<Rank>(Rank{std::move(channel), Descriptor(static_cast<int>(process))});
}

nlohmann::json RemoteJob::receive(Channel& channel, const std::string& who) {
  const auto message = channel.receive();
  if (!message) {
    const auto ending = mpirun_.wait_for(kReportTimeout);
    throw JobError(name_ + ": " + who + " ended in the middle of the measurement" +
                   (ending ? "; mpirun: " + *ending : ""));
  }
  if (message->contains("error")) {
    if (message->at("is_usage")) {
      throw kolo::InvalidArgument(message->at("error").get<std::string>());
    }
    throw JobError(name_ + ": " + who + ": " + message->at("error").get<std::string>());
  }
  return *message;
}

std::vector<nlohmann::json> RemoteJob::ask(const nlohmann::json& order) {
  for (const auto& rank : ranks_) rank->channel.send(order);  // dead ranks are detected below
  std::vector<nlohmann::json> answers(ranks_.size());
  for (std::size_t missing = answers.size(); missing > 0;) {
    std::vector<int> descriptors{interrupts_.descriptor()};
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      descriptors.push_back(answers[i].is_null() ? ranks_[i]->channel.descriptor() : -1);
    }
    std::vector<pollfd> watched = to_watch(descriptors);
    ::poll(watched.data(), watched.size(), -1);
    interrupts_.check();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (watched[i + 1].revents == 0) continue;
      answers[i] = receive(ranks_[i]->channel, "rank " + std::to_string(i));
      --missing;
    }
  }
  return answers;
}

std::vector<Label> RemoteJob::prepare(const Workload& workload) {
  return ask({{"do", "prepare"}, {"workload", workload}}).front().at("labels");
}

Block RemoteJob::run(std::size_t case_index, int iterations) {
  const auto answers = ask({{"do", "run"}, {"case", case_index}, {"iterations", iterations}});
  Block all;
  for (const auto& answer : answers) {
    const auto block = answer.get<Block>();
    all.calls_us.resize(block.calls_us.size());
    for (std::size_t i = 0; i < all.calls_us.size(); ++i) {
      all.calls_us[i] = std::max(all.calls_us[i], block.calls_us[i]);
    }
    all.mean_us = std::max(all.mean_us, block.mean_us);
    all.host_us = std::max(all.host_us, block.host_us);
    all.cpu_s += block.cpu_s;
  }
  return all;
}

std::uint64_t RemoteJob::count_wrong(std::size_t case_index) {
  std::uint64_t wrong = 0;
  for (const auto& answer : ask({{"do", "check"}, {"case", case_index}})) {
    wrong += answer.at("wrong").get<std::uint64_t>();
  }
  return wrong;
}

void RemoteJob::finish() {
  for (const auto& rank : ranks_) rank->channel.send({{"do", "end"}});
  const auto ending = mpirun_.wait_for(kExitTimeout);
  if (!ending) throw JobError(name_ + ": its ranks do not end");
  if (*ending != kCleanExit) throw JobError(name_ + ": mpirun: " + *ending);
}

}  // namespace bench
