#include "restart/options.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string_view>
#include <wordexp.h>

#include <CLI/CLI.hpp>

#include "common/mpirun.hpp"

namespace restart {
namespace {

constexpr int kMaxRanks = 1'000'000;
constexpr int kMaxRestarts = 1'000'000;

constexpr const char* kDescription =
    "Runs PROGRAM by mpirun, and again when the job fails, on the hosts that are left.\n\n"
    "The program itself resumes from its newest checkpoint: see docs/restart.md. Exit status: that "
    "of the last job; 2: wrong flags; 127: mpirun or PROGRAM cannot be run.\n";

/// Words of the command line that are parsed further.
struct Words {
  std::string host;
  std::string host_file;
  std::string mpirun = examples::default_mpirun();
};

/// Throws std::invalid_argument.
std::vector<std::string> split_as_shell(const std::string& text) {
  wordexp_t found{};
  const int error = ::wordexp(text.c_str(), &found, WRDE_NOCMD);
  std::vector<std::string> words;
  if (error == 0) words.assign(found.we_wordv, found.we_wordv + found.we_wordc);
  if (error == 0 || error == WRDE_NOSPACE) ::wordfree(&found);
  if (words.empty()) throw std::invalid_argument("--mpirun '" + text + "' is not a command");
  return words;
}

/// Throws std::invalid_argument.
std::vector<Host> parse_hosts(const Words& words) {
  const bool is_list = !words.host.empty();
  if (!is_list && words.host_file.empty()) return {};
  std::ifstream file;
  if (!is_list) file.open(words.host_file);
  try {
    if (!is_list && !file) throw std::invalid_argument("cannot be read");
    return is_list ? parse_host_list(words.host) : parse_host_file(file);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument((is_list ? "--host" : "--hostfile " + words.host_file) + ": " +
                                error.what());
  }
}

/// Throws std::invalid_argument.
void check(const Options& options) {
  if (options.program.empty()) {
    throw std::invalid_argument(
        "no PROGRAM: it stands behind --, as in kolo-restart -np 4 -- "
        "./train --lr 0.1");
  }
  if (options.min_ranks > options.ranks) {
    throw std::invalid_argument("--min-np " + std::to_string(options.min_ranks) +
                                " is more than -np " + std::to_string(options.ranks));
  }
  const int slots = count_slots(options.hosts);
  if (!options.hosts.empty() && options.ranks > slots) {
    throw std::invalid_argument("-np " + std::to_string(options.ranks) +
                                " is more than the slots of " + to_list(options.hosts) +
                                ", of which HOST:N has N");
  }
  for (const std::string& word : options.mpirun) {
    if (word != "--enable-recovery" && word != "-enable-recovery" &&
        word != "-disable-auto-cleanup") {
      continue;
    }
    throw std::invalid_argument("--mpirun: with " + word +
                                " mpirun does not tell that a rank has failed; leave it out");
  }
}

CLI::Option* add_duration(CLI::App& app, const char* name, std::chrono::milliseconds& duration,
                          const char* help) {
  const std::map<std::string, std::int64_t> units{
      {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  return app
      .add_option_function<std::int64_t>(
          name, [&duration](std::int64_t value) { duration = std::chrono::milliseconds(value); },
          help)
      ->transform(CLI::AsNumberWithUnit(
          units, static_cast<CLI::AsNumberWithUnit::Options>(CLI::AsNumberWithUnit::CASE_SENSITIVE |
                                                             CLI::AsNumberWithUnit::UNIT_REQUIRED)))
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{86'400'000}))
      ->option_text("TIME");
}

void add_ranks(CLI::App& app, Options& options, Words& words) {
  app.add_option("-n,--np", options.ranks, "ranks to start; -np, as mpirun has it, too")
      ->required()
      ->check(CLI::Range(1, kMaxRanks));
  app.add_option("--min-np", options.min_ranks,
                 "fewest ranks to go on with where hosts are lost (default: as many as -np)")
      ->check(CLI::Range(1, kMaxRanks));
  auto* const list = app.add_option("--host", words.host,
                                    "hosts and how many ranks each takes, as in a:2,b:2 (default: "
                                    "mpirun chooses)")
                         ->type_name("HOST:N,…");
  app.add_option("--hostfile", words.host_file, "the same as a file with lines such as a slots=2")
      ->excludes(list)
      ->type_name("FILE");
  app.add_option("--mpirun", words.mpirun,
                 "what starts a job, with options of its own (default: what KOLO_MPIRUN names, or "
                 "mpirun)")
      ->type_name("COMMAND");
}

void add_restarts(CLI::App& app, Options& options) {
  app.add_option("--max-restarts", options.max_restarts, "restarts in all (default 3)")
      ->check(CLI::Range(0, kMaxRestarts));
  app.add_option("--host-failures", options.host_failures,
                 "failures in a row that mpirun traces to one host, after which the job goes on "
                 "without it (default 2)")
      ->check(CLI::Range(1, kMaxRestarts));
  add_duration(app, "--backoff", options.backoff,
               "pause before the first restart, doubled for each further one up to 1m (default "
               "1s)");
  add_duration(app, "--probe-timeout", options.probe_timeout,
               "how long a host may take to start a process, or it counts as lost (default 30s)");
  add_duration(app, "--grace", options.grace,
               "how long processes that are to end may take before they are killed (default 10s)");
}

/// Replaces -np, mpirun's spelling, with --np: CLI11 has no long options with one dash.
std::vector<const char*> with_long_np(const char* const* begin, const char* const* end) {
  std::vector<const char*> words(begin, end);
  std::ranges::replace_if(words, [](std::string_view word) { return word == "-np"; }, "--np");
  return words;
}

}  // namespace

std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv) {
  Options options;
  Words words;
  CLI::App app(kDescription, "kolo-restart");
  app.footer(
      "PROGRAM and its arguments stand behind --, as in\n"
      "  kolo-restart -np 4 --host a:2,b:2 --min-np 2 -- ./train --lr 0.1\n");
  add_ranks(app, options, words);
  add_restarts(app, options);
  const char* const* const end = argv + argc;
  const char* const* const dashes =
      std::find_if(argv, end, [](std::string_view word) { return word == "--"; });
  const std::vector<const char*> own = with_long_np(argv, dashes);
  if (const auto exit =
          examples::parse_command_line(app, static_cast<int>(own.size()), own.data())) {
    return *exit;
  }
  if (dashes != end) options.program.assign(dashes + 1, end);
  if (options.min_ranks == 0) options.min_ranks = options.ranks;
  try {
    options.mpirun = split_as_shell(words.mpirun);
    options.hosts = parse_hosts(words);
    check(options);
  } catch (const std::invalid_argument& error) {
    return examples::Exit{2, "kolo-restart: " + std::string(error.what()) +
                                 "\nRun with --help for more information.\n"};
  }
  return options;
}

}  // namespace restart
