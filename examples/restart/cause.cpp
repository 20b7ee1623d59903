#include "restart/cause.hpp"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace restart {
namespace {

constexpr std::size_t kLongestLine = 4096;
constexpr const char* kAborted = "Per user-direction, the job has been aborted";

using Name = std::array<char, 256>;
using Number = std::array<char, 10>;  // as text

std::optional<Cause> find_signal(const char* text) {
  Number rank{};
  Number signal{};
  Name node{};
  if (std::sscanf(text,
                  "noticed that process rank %9[0-9] with PID %*s on node %255s exited on signal "
                  "%9[0-9]",
                  rank.data(), node.data(), signal.data()) != 3) {
    return std::nullopt;
  }
  const std::string where = node.data();
  const int number = std::stoi(signal.data());
  return Cause{.text = std::string("rank ") + rank.data() + " on node " + where +
                       " ended by signal " + signal.data() + " (" + ::strsignal(number) + ")",
               .node = where,
               .may_be_node_failure = number == SIGKILL || number == SIGBUS};
}

std::optional<Cause> find_exit(const char* text) {
  Number rank{};
  Number code{};
  // "[[123,1],2]" in version 4, "[prterun-name-123@1,2]" in version 5.
  for (const char* const format : {"Process name: [[%*[^]]],%9[0-9]] Exit code: %9[0-9]",
                                   "Process name: [%*[^],],%9[0-9]] Exit code: %9[0-9]"}) {
    if (std::sscanf(text, format, rank.data(), code.data()) != 2) continue;
    return Cause{
        .text = std::string("rank ") + rank.data() + " ended with exit status " + code.data(),
        .node = ""};
  }
  return std::nullopt;
}

std::optional<Cause> find_failed_start(const char* text) {
  Name node{};
  if (std::sscanf(text, "Executable: %*[^\n] Node: %255s", node.data()) != 1) return std::nullopt;
  const std::string where = node.data();
  return Cause{.text = "the program could not be started on node " + where,
               .node = where,
               .may_be_node_failure = true};
}

std::optional<Cause> find_lost_daemon(const char* text) {
  Name node{};
  if (std::sscanf(text, "Remote daemon: %*s on node %255s", node.data()) != 1) return std::nullopt;
  const std::string where = node.data();
  return Cause{.text = "the connection to node " + where + " was lost",
               .node = where,
               .may_be_node_failure = true};
}

struct Message {
  const char* begin;
  std::optional<Cause> (*find)(const char* text);
};

constexpr std::array kMessages{
    Message{"noticed that process rank", find_signal}, Message{"Process name: [", find_exit},
    Message{"Executable: ", find_failed_start}, Message{"Remote daemon: [", find_lost_daemon}};

}  // namespace

void CauseFinder::add(std::string_view bytes) {
  for (const char byte : bytes) {
    if (cause_) return;
    if (byte == '\n') {
      end_line();
    } else if (line_.size() < kLongestLine) {
      line_.push_back(byte);
    }
  }
}

void CauseFinder::end_line() {
  const std::string both = previous_ + '\n' + line_;  // its messages have line breaks
  for (const Message& message : kMessages) {
    const std::size_t begin = both.find(message.begin);
    if (!cause_ && begin != std::string::npos) cause_ = message.find(both.c_str() + begin);
  }
  if (line_.find(kAborted) != std::string::npos) is_aborted_ = true;
  previous_ = std::move(line_);
  line_.clear();
}

}  // namespace restart
