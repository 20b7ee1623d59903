// Runs a program with mpirun, and restarts it when it fails; see docs/restart.md.
//
//   kolo-restart -np 4 --host a:2,b:2 --min-np 2 -- ./train
#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <unistd.h>
#include <variant>
#include <vector>

#include "common/descriptor.hpp"
#include "common/mpirun.hpp"
#include "common/start_child.hpp"
#include "restart/children.hpp"
#include "restart/job.hpp"
#include "restart/launcher.hpp"
#include "restart/options.hpp"
#include "restart/plan.hpp"
#include "restart/probes.hpp"

namespace {

using restart::Attempt;
using restart::Host;
using restart::JobEnd;
using restart::milliseconds;
using restart::say;

constexpr int kFailed = 1;
constexpr int kCannotStart = 127;
constexpr int kSignalled = 128;

std::string name_of_this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string to_text(milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s"
                                  : std::to_string(time.count()) + " ms";
}

std::string to_text(const Attempt& attempt) {
  return std::to_string(attempt.ranks) + (attempt.ranks == 1 ? " rank" : " ranks");
}

std::string reason_of(const JobEnd& end) {
  if (end.cause) return end.cause->text;
  if (end.was_killed) return "mpirun has given the job up but did not end";
  if (end.signal == 0) return "mpirun ended with exit status " + std::to_string(end.code);
  return "mpirun ended by signal " + std::to_string(end.signal) + " (" + ::strsignal(end.signal) +
         ")";
}

/// Runs the job until it succeeds or may not be restarted.
class Restarter {
 public:
  explicit Restarter(const restart::Options& options)
      : options_(options),
        launcher_(options.mpirun, options.program,
                  !options.hosts.empty() && examples::is_open_mpi(options.mpirun.front())),
        plan_({.ranks = options.ranks,
               .min_ranks = options.min_ranks,
               .host_failures = options.host_failures},
              options.hosts) {}

  /// The exit status of this program.
  int run() {
    Attempt attempt = plan_.first();
    for (int restarts = 0;; ++restarts) {
      const JobEnd end = restart::run_job(children_, launcher_.command(attempt), options_.grace);
      if (end.code == 0 || children_.end_signal() != 0) return end.code;
      const std::string failed = describe(attempt, restarts) + " failed: " + reason_of(end);
      if (restarts == options_.max_restarts) {
        say(failed + "; no restart is left");
        return end.code;
      }
      const milliseconds pause = restart::pause_before(restarts + 1, options_.backoff);
      say(failed + note_failure(end) + "; starting again in " + to_text(pause));
      restart::rest(children_, pause);
      attempt = plan_.next(ask_hosts());
      if (children_.end_signal() != 0) return kSignalled + children_.end_signal();
      if (!plan_.is_possible(attempt)) {
        say("the hosts that are left take " + to_text(attempt) + ", fewer than --min-np " +
            std::to_string(options_.min_ranks) + ": not started again");
        return end.code;
      }
      say(describe(attempt, restarts + 1) + " starts" +
          (attempt.hosts.empty() ? "" : ", hosts " + restart::to_list(attempt.hosts)));
    }
  }

 private:
  std::string describe(const Attempt& attempt, int restarts) const {
    return "attempt " + std::to_string(restarts + 1) + " of " +
           std::to_string(options_.max_restarts + 1) + " on " + to_text(attempt);
  }

  /// Notes the failure; returns what happens to the host that is to blame.
  std::string note_failure(const JobEnd& end) {
    const bool may_be_node_failure = end.cause && end.cause->may_be_node_failure;
    const std::string lost =
        plan_.note_failure(may_be_node_failure ? end.cause->node : "", name_of_this_host());
    if (lost.empty()) return "";
    return "; host " + lost + " is left out, " + std::to_string(options_.host_failures) +
           (options_.host_failures == 1 ? " failure" : " failures in a row");
  }

  /// Which of the plan's hosts can start a process.
  std::vector<bool> ask_hosts() {
    std::vector<std::vector<std::string>> commands;
    for (const Host& host : plan_.hosts()) commands.push_back(launcher_.probe(host));
    std::vector<bool> answers =
        restart::run_probes(children_, commands, options_.probe_timeout, options_.grace);
    for (std::size_t i = 0; i < answers.size() && children_.end_signal() == 0; ++i) {
      if (!answers[i]) say("host " + plan_.hosts()[i].name + " does not answer and is left out");
    }
    return answers;
  }

  const restart::Options& options_;
  restart::Launcher launcher_;
  restart::Plan plan_;
  restart::Children children_;
};

int run(const restart::Options& options) {
  const std::string problem = restart::problem_with_program(options.program.front());
  if (!problem.empty()) {
    say(problem);
    return kCannotStart;
  }
  try {
    return Restarter(options).run();
  } catch (const examples::CannotStart& error) {
    say(std::string(error.what()) + " (--mpirun or KOLO_MPIRUN names another mpirun)");
    return kCannotStart;
  }
}

}  // namespace

int main(int argc, char** argv) {
  examples::open_standard_streams();
  try {
    const auto parsed = restart::parse_options(argc, argv);
    if (const auto* exit = std::get_if<examples::Exit>(&parsed)) {
      return examples::leave(*exit, true);
    }
    return run(std::get<restart::Options>(parsed));
  } catch (const std::exception& error) {
    say(error.what());
    return kFailed;
  }
}
