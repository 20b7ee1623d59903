#include "bench/jobs.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "bench/rank.hpp"
#include "common/descriptor.hpp"
#include "common/start_child.hpp"
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

// SIGPIPE: the reader of our output has exited.
Interrupts::Interrupts() : signals_({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {}

void Interrupts::check() const {
  if (const auto signal = signals_.next()) throw Interrupted(static_cast<int>(signal->ssi_signo));
}

ChildProcess::ChildProcess(const std::vector<std::string>& command, const Variables& environment,
                           const Interrupts& interrupts) {
  const examples::Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing.number() < 0) throw std::system_error(errno, std::generic_category(), "/dev/null");
  pid_ = examples::start_child({.command = command,
                                .blocked_signals = interrupts.blocked_before(),
                                .environment = environment,
                                .input = nothing.number(),
                                .output = STDERR_FILENO,
                                .has_own_group = true});  // Ctrl-C: we end it ourselves
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
