#pragma once

#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace restart {

/// A machine, and the number of ranks that it takes.
struct Host {
  std::string name;
  int slots = 1;

  bool operator==(const Host&) const = default;
};

/// Parses the value of --host, such as "a:2,b,b": each mention adds its number of slots, or one.
/// Throws std::invalid_argument.
std::vector<Host> parse_host_list(std::string_view list);

/// Parses a host file of Open MPI ("a slots=2") or MPICH ("a:2"). A line without a number adds one
/// slot. Throws std::invalid_argument, naming the line.
std::vector<Host> parse_host_file(std::istream& file);

int count_slots(const std::vector<Host>& hosts);

/// A list such as "a:2,b:2", which both launchers accept.
std::string to_list(const std::vector<Host>& hosts);

/// Whether mpirun means the host `listed` when it reports a node as `reported`, with or without
/// its domain; `here` is the name of this machine.
bool is_same_host(std::string_view listed, std::string_view reported, std::string_view here);

}  // namespace restart
