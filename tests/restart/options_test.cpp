#include "restart/options.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "common/mpirun.hpp"
#include "restart/launcher.hpp"

namespace kolo::test::restart_options_test {

using Words = std::vector<std::string>;
using std::chrono::milliseconds;

std::variant<restart::Options, examples::Exit> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "kolo-restart");
  return restart::parse_options(static_cast<int>(arguments.size()), arguments.data());
}

restart::Options options(const std::vector<const char*>& arguments) {
  return std::get<restart::Options>(parse(arguments));
}

std::string error(const std::vector<const char*>& arguments) {
  const auto exit = std::get<examples::Exit>(parse(arguments));
  EXPECT_EQ(exit.code, 2) << exit.text;
  return exit.text;
}

TEST(RestartOptions, Defaults) {
  const restart::Options plain = options({"-np", "4", "--", "./train"});
  EXPECT_EQ(plain.ranks, 4);
  EXPECT_EQ(plain.min_ranks, 4);
  EXPECT_EQ(plain.max_restarts, 3);
  EXPECT_TRUE(plain.hosts.empty());
  EXPECT_EQ(plain.backoff, milliseconds(1000));
  EXPECT_EQ(plain.program, Words{"./train"});
}

TEST(RestartOptions, ProgramAndItsArguments_AreNotTouched) {
  const Words words{"./my train", "--np", "-np", "--", "", "--help", "a  b"};
  std::vector<const char*> arguments{"--np", "2", "--"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  EXPECT_EQ(options(arguments).program, words);
  EXPECT_EQ(options(arguments).ranks, 2);
}

TEST(RestartOptions, Times) {
  const restart::Options times = options(
      {"-n", "1", "--backoff", "250ms", "--grace", "2m", "--probe-timeout", "5s", "--", "x"});
  EXPECT_EQ(times.backoff, milliseconds(250));
  EXPECT_EQ(times.grace, milliseconds(120'000));
  EXPECT_EQ(times.probe_timeout, milliseconds(5000));
  for (const char* const time : {"3", "-1s", "2d", "25h", "1e99s", ""}) {
    EXPECT_NE(error({"-np", "1", "--backoff", time, "--", "x"}).find("--backoff"),
              std::string::npos)
        << time;
  }
}

TEST(RestartOptions, MpirunIsSplitAsTheShellDoes) {
  EXPECT_EQ(options({"-np", "1", "--mpirun", "mpirun  -x 'A=b c'", "--", "x"}).mpirun,
            (Words{"mpirun", "-x", "A=b c"}));
  for (const char* const command : {"", " ", "mpirun 'x", "mpirun $(true)", "a | b"}) {
    EXPECT_NE(error({"-np", "1", "--mpirun", command, "--", "x"}).find("is not a command"),
              std::string::npos)
        << command;
  }
  EXPECT_NE(error({"-np", "1", "--mpirun", "mpirun --enable-recovery", "--", "x"})
                .find("does not tell that a rank has failed"),
            std::string::npos);
}

TEST(RestartOptions, Hosts_OfAListOrAFile) {
  EXPECT_EQ(options({"-np", "3", "--host", "a:2,b", "--", "x"}).hosts,
            (std::vector<restart::Host>{{"a", 2}, {"b", 1}}));
  const std::string path = testing::TempDir() + "kolo_restart_hosts";
  std::ofstream(path) << "a slots=2\nb slots=2\n";
  EXPECT_EQ(options({"-np", "3", "--hostfile", path.c_str(), "--", "x"}).hosts,
            (std::vector<restart::Host>{{"a", 2}, {"b", 2}}));
  std::ofstream(path) << "a slots=2\nb cores=2\n";
  EXPECT_NE(error({"-np", "3", "--hostfile", path.c_str(), "--", "x"})
                .find("--hostfile " + path + ": line 2: 'cores=2'"),
            std::string::npos);
  EXPECT_NE(error({"-np", "3", "--hostfile", "/no/such/file", "--", "x"})
                .find("--hostfile /no/such/file: cannot be read"),
            std::string::npos);
}

TEST(RestartOptions, InvalidOptionsAreErrors) {
  const auto names = [](const std::vector<const char*>& arguments, const char* text) {
    const std::string said = error(arguments);
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  names({"--", "x"}, "--np is required");
  names({"-np", "0", "--", "x"}, "--np");
  names({"-np", "2", "--min-np", "3", "--", "x"}, "--min-np 3 is more than -np 2");
  names({"-np", "2", "--min-np", "0", "--", "x"}, "--min-np");
  names({"-np", "2", "--max-restarts", "-1", "--", "x"}, "--max-restarts");
  names({"-np", "2"}, "no PROGRAM: it stands behind --");
  names({"-np", "2", "--"}, "no PROGRAM: it stands behind --");
  names({"-np", "2", "x"}, "not expected: x");
  names({"-np", "4", "--host", "a:2,b", "--", "x"}, "-np 4 is more than the slots of a:2,b:1");
  names({"-np", "1", "--host", "a", "--hostfile", "b", "--", "x"}, "excludes");
  names({"-np", "1", "--host", "a:x", "--", "x"}, "--host: 'a:x' has no number of slots");
}

TEST(RestartLauncher, CommandsOfBothMpis) {
  const restart::Attempt attempt{.ranks = 3, .hosts = {{"a", 2}, {"b", 2}}};
  const restart::Launcher open_mpi({"mpirun", "--oversubscribe"}, {"./train", "a b"}, true);
  EXPECT_EQ(open_mpi.command(attempt), (Words{"mpirun", "--oversubscribe", "-np", "3", "--host",
                                              "a:2,b:2", "./train", "a b"}));
  EXPECT_EQ(open_mpi.command({.ranks = 2}),
            (Words{"mpirun", "--oversubscribe", "-np", "2", "./train", "a b"}));
  EXPECT_EQ(open_mpi.probe({"b", 2}),
            (Words{"mpirun", "--oversubscribe", "-np", "1", "--host", "b:2", "true"}));
  const restart::Launcher mpich({"mpiexec"}, {"./train"}, false);
  EXPECT_EQ(mpich.command(attempt), (Words{"mpiexec", "-np", "3", "-hosts", "a:2,b:2", "./train"}));
}

/// An executable script, or a file that is not executable.
std::string write_script(const std::string& name, const std::string& text, bool is_executable) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path) << "#!/bin/sh\n" << text << '\n';
  std::filesystem::permissions(
      path, is_executable ? std::filesystem::perms::owner_all : std::filesystem::perms::owner_read);
  return path;
}

TEST(RestartLauncher, ProgramIsAPathOrInPath) {
  const auto problem = [](const std::string& name) { return restart::problem_with_program(name); };
  EXPECT_EQ(problem("sh"), "");
  EXPECT_EQ(problem("/bin/sh"), "");
  for (const std::string name : {"/bin", "/no/such/program", "kolo-no-such-program", ""}) {
    EXPECT_EQ(problem(name), "cannot find the program " + name);
  }
  const std::string file = write_script("kolo restart program", "", /*is_executable=*/false);
  EXPECT_NE(problem(file).find("it is not executable (chmod +x)"), std::string::npos);
  std::filesystem::remove(file);
}

TEST(RestartLauncher, MpirunMayHaveAnyName) {
  const std::string mpirun =
      write_script("kolo's $mpirun", "echo 'mpirun (Open MPI) 4'", /*is_executable=*/true);
  EXPECT_TRUE(examples::is_open_mpi(mpirun));
  std::filesystem::remove(mpirun);
}

}  // namespace kolo::test::restart_options_test
