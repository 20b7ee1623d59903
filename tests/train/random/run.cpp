#include "train/random/run.hpp"

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <system_error>

#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::random_training {
namespace {

void require_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& each : words) {
    if (text.find(each) != std::string::npos) continue;
    throw std::runtime_error("no \"" + each + "\" in the error: " + text);
  }
}

/// Makes a call that must throw.
void make_refused(const Line& line, Rank& rank) {
  const Expected& expected = line.expected;
  try {
    line.call->on_rank(rank, expected);
  } catch (const MismatchError& error) {
    if (expected.is_mismatch) return require_words(error.what(), expected.words);
    throw;
  } catch (const InvalidArgument& error) {
    if (expected.is_mismatch || expected.is_of_program) throw;
    return require_words(error.what(), expected.words);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (!expected.is_of_program) throw;
    return require_words(error.what(), expected.words);
  }
  throw std::runtime_error("it was not refused");
}

}  // namespace

void set_default_dtype(const Setup& setup) {
  torch::set_default_dtype(setup.has_float_default ? caffe2::TypeMeta::Make<float>()
                                                   : caffe2::TypeMeta::Make<double>());
}

std::string Places::text(const Program& program) const {
  std::string text;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    const auto number = static_cast<std::size_t>(part[rank].load());
    if (number >= program.parts.size() || rank >= program.parts[number].setup.ranks) continue;
    const auto place = static_cast<std::size_t>(line[rank].load());
    const std::vector<Line>& lines = program.parts[number].lines;
    text += "  rank " + std::to_string(rank) + ": part " + std::to_string(number) + ", " +
            (place < lines.size() ? lines[place].call->text() : "begins or ends") + "\n";
  }
  return text;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "kolo-training-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void run_part(const Program& program, std::size_t part, Runtime& runtime,
              const std::filesystem::path& folder, Places& places) {
  const Part& own = program.parts[part];
  const int number = runtime.rank();
  places.part[number] = static_cast<int>(part);
  places.line[number] = static_cast<int>(own.lines.size());
  Rank rank(program.plan, own.setup, own.structure, runtime, folder);
  for (std::size_t i = 0; i < own.lines.size(); ++i) {
    const Line& line = own.lines[i];
    places.line[number] = static_cast<int>(i);
    try {
      if (rank.is_away && !line.call->ends_absence()) {
        line.call->missed(rank, line.expected);
      } else if (line.expected.returns()) {
        line.call->on_rank(rank, line.expected);
      } else {
        make_refused(line, rank);
      }
    } catch (const std::exception& error) {
      throw std::runtime_error("in \"" + line.call->text() + "\": " + error.what());
    }
  }
  places.line[number] = static_cast<int>(own.lines.size());
}

std::string run_in_threads(const Program& program, std::chrono::seconds timeout, Places& places) {
  const TemporaryFolder folder;
  for (std::size_t i = 0; i < program.parts.size(); ++i) {
    const Setup& setup = program.parts[i].setup;
    test::Setting setting{.size = setup.ranks, .network = {.nodes = setup.nodes}};
    setting.network.has_shared_memory = setup.has_shared_memory;
    setting.config.timeout = timeout;
    set_default_dtype(setup);
    std::string failure;
    try {
      test::run_runtimes(
          setting, [&](Runtime& runtime) { run_part(program, i, runtime, folder.path(), places); });
    } catch (const std::exception& error) {
      failure = error.what();
    }
    torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
    if (!failure.empty()) return "part " + std::to_string(i) + ": " + failure;
  }
  return {};
}

}  // namespace kolo::random_training
