#include "restart/hosts.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace restart {
namespace {

constexpr int kMaxSlots = 1'000'000;

int parse_slots(std::string_view text, std::string_view whole) {
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc() || end != text.data() + text.size() || slots < 1 || slots > kMaxSlots) {
    throw std::invalid_argument("'" + std::string(whole) + "' has no number of slots from 1 to " +
                                std::to_string(kMaxSlots));
  }
  return slots;
}

/// "a" or "a:2".
Host parse_host(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto is_wrong = [](unsigned char letter) {
    return std::isspace(letter) != 0 || letter == '=' || letter == ',';
  };
  if (name.empty() || name.front() == '-' || std::ranges::any_of(name, is_wrong)) {
    throw std::invalid_argument("'" + std::string(text) + "' is not the name of a host");
  }
  if (colon == std::string_view::npos) return {std::string(name), 1};
  return {std::string(name), parse_slots(text.substr(colon + 1), text)};
}

void add(std::vector<Host>& hosts, const Host& host) {
  const auto known = std::ranges::find(hosts, host.name, &Host::name);
  if (known == hosts.end()) {
    hosts.push_back(host);
  } else {
    known->slots += host.slots;
  }
  if (count_slots(hosts) > kMaxSlots) throw std::invalid_argument("the hosts have too many slots");
}

/// Parses a line without its comment; false if nothing is left.
bool parse_line(const std::string& line, Host& host) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string word;
  if (!(words >> word)) return false;
  host = parse_host(word);
  while (words >> word) {
    const std::string name = word.substr(0, word.find('='));
    if (name == "max_slots" || name == "max-slots") continue;  // never more than its slots
    if (name != "slots") throw std::invalid_argument("'" + word + "' is not known: slots=N is");
    host.slots =
        parse_slots(std::string_view(word).substr(std::min(word.size(), name.size() + 1)), word);
  }
  return true;
}

std::string_view without_domain(std::string_view name) {
  const bool is_address = std::ranges::all_of(
      name, [](unsigned char letter) { return std::isdigit(letter) != 0 || letter == '.'; });
  return is_address ? name : name.substr(0, name.find('.'));
}

}  // namespace

std::vector<Host> parse_host_list(std::string_view list) {
  std::vector<Host> hosts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    add(hosts, parse_host(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return hosts;
}

std::vector<Host> parse_host_file(std::istream& file) {
  std::vector<Host> hosts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    try {
      Host host;
      if (parse_line(line, host)) add(hosts, host);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("line " + std::to_string(number) + ": " + error.what());
    }
  }
  if (hosts.empty()) throw std::invalid_argument("it names no host");
  return hosts;
}

int count_slots(const std::vector<Host>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const Host& host) { return sum + host.slots; });
}

std::string to_list(const std::vector<Host>& hosts) {
  std::string list;
  for (const Host& host : hosts) {
    list += (list.empty() ? "" : ",") + host.name + ':' + std::to_string(host.slots);
  }
  return list;
}

bool is_same_host(std::string_view listed, std::string_view reported, std::string_view here) {
  constexpr std::array<std::string_view, 2> kThisHost{"localhost", "127.0.0.1"};
  if (std::ranges::find(kThisHost, listed) != kThisHost.end()) listed = here;
  return listed == reported || without_domain(listed) == without_domain(reported);
}

}  // namespace restart
