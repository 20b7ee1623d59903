#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// Builds a random program step by step. After each step all sets work.
class ProgramBuilder {
 public:
  ProgramBuilder(std::uint64_t seed, int size);

  simulator::Random& random() { return random_; }
  int operation_count() const { return static_cast<int>(program_.operations.size()); }
  Program take() { return std::move(program_); }

  /// Repeats the same few rounds, like a training loop.
  void add_loop();
  /// One round in which ranks disagree about some operations, while others succeed.
  void add_disagreements();
  /// Ranks with fewer rounds than others join.
  void add_join();
  /// A deadline passes because one rank is late; its own submission then fails in the same way.
  void add_expiry();
  void add_set();
  /// Removes a set while an operation on it is pending.
  void remove_set();
  /// Creates or releases a shared buffer.
  void add_buffer();
  /// Shuts down while operations are pending.
  void add_end();

 private:
  struct Buffer {
    int number = 0;
    int set = 0;
    std::size_t size_bytes = 0;
  };
  struct Joining {
    int set = 0;
    std::vector<int> rounds;  // by member
    int last_round = 0;
    bool on_thread = false;
    bool is_settled = true;
  };

  Round& new_round() { return program_.rounds.emplace_back(); }
  /// Numbers the operation and adds it to the last round.
  Operation& submit(Operation operation);

  int random_set(int min_members = 1);
  Operation random_operation(int set);
  std::vector<Operation> random_operations(int count, std::vector<std::string>& names);
  std::vector<std::string> shuffled_names();
  bool is_place_taken(const Operation& operation) const;
  void add_other_operations(std::vector<std::string>& names, int most);

  void add_round_of(const Joining& joining, int round, std::vector<std::string>& names);
  void add_operation_of(const Joining& joining, int round, std::vector<std::string>& names);
  void adapt_to_joined(Operation& operation);
  void add_leftover(int set, const std::string& name, bool is_called_twice);
  void refuse(int set, int rank, ErrorKind error);

  simulator::Random random_;
  Program program_;
  std::vector<int> open_sets_;
  std::vector<int> closed_sets_;
  std::vector<Buffer> buffers_;
  int buffer_count_ = 0;
};

}  // namespace kolo::programs
