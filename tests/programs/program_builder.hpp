#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// Puts a random program together, piece by piece. After each piece all sets work.
class ProgramBuilder {
 public:
  ProgramBuilder(std::uint64_t seed, int size);

  simulator::Random& random() { return random_; }
  int operation_count() const { return static_cast<int>(program_.operations.size()); }
  Program take() { return std::move(program_); }

  /// The same few rounds several times, as a training loop has them.
  void add_loop();
  /// One round in which ranks disagree, amid others that go well.
  void add_disagreements();
  /// Ranks that submit fewer rounds than others join.
  void add_join();
  /// A deadline passes since one rank is late; its own submission then fails alike.
  void add_expiry();
  void add_set();
  /// Removes one, with something pending on it.
  void remove_set();
  /// Makes a shared buffer, or drops one.
  void add_buffer();
  /// Shuts down, with something pending.
  void add_end();

 private:
  struct Buffer {
    int number = 0;
    int set = 0;
    std::size_t size_bytes = 0;
  };
  struct Joining {
    int set = 0;
    std::vector<int> rounds;  // of each member
    int last_round = 0;
    bool on_thread = false;
    bool is_settled = true;
  };

  Round& new_round() { return program_.rounds.emplace_back(); }
  /// Numbers the operation and puts it into the last round.
  Operation& submit(Operation operation);

  int random_set(int least_members = 1);
  Operation random_operation(int set);
  std::vector<Operation> random_operations(int count, std::vector<std::string>& names);
  std::vector<std::string> shuffled_names();
  bool is_place_taken(const Operation& operation) const;
  void add_company(std::vector<std::string>& names, int most);

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
