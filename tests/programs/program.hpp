#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/config.hpp"
#include "kolo/dtype.hpp"
#include "kolo/error.hpp"
#include "kolo/reduction.hpp"
#include "support/fake_world/fake_world.hpp"

/// Random programs: which operations each rank submits, in which orders, and how each of them must
/// end. A program depends only on its seed and the number of ranks.
namespace kolo::programs {

struct Tensor {
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;  ///< all-gather, all-to-all: of one row

  std::size_t count() const;
};

/// An error in a call that its other fields do not show.
enum class Mistake { None, OutputShape, OutputDType, NoMemory, NoOutput, CudaMemory, Scalar };

struct Operation {
  int id = 0;  ///< index in Program::operations; determines its inputs
  Collective collective = Collective::AllReduce;
  int set = 0;       ///< number of the process set
  std::string name;  ///< empty: unnamed
  std::vector<Tensor> tensors;
  ReduceOp op = ReduceOp::Sum;
  std::string custom;
  double prescale = 1.0;
  double postscale = 1.0;
  JoinDivisor join_divisor = JoinDivisor::World;
  std::string compression = "none";
  int root = 0;                                           ///< a world rank
  std::vector<std::vector<std::int64_t>> rows;            ///< all-gather: of each tensor, by member
  std::vector<std::vector<std::int64_t>> split;           ///< all-to-all: of each member, by member
  bool equal_splits = false;                              ///< all-to-all: no splits are given
  std::optional<std::vector<std::int64_t>> given_splits;  ///< all-to-all: wrong ones
  bool in_place = false;
  int buffer = -1;  ///< the SharedBuffer it runs in; -1: its own memory
  int slot = 0;     ///< the part of the buffer, for one operation at a time
  std::size_t offset_bytes = 0;
  std::optional<std::chrono::milliseconds> timeout;
  Mistake mistake = Mistake::None;

  std::vector<int> submitters;     ///< world ranks, ascending
  std::vector<int> joined;         ///< members that have joined instead
  std::optional<ErrorKind> error;  ///< the error on all submitters
  bool is_refused = false;         ///< the call itself throws the error
  bool is_settled = false;         ///< all submitters wait for it in the same round
  int outlier = -1;                ///< a rank that submits `variant` instead
  std::shared_ptr<const Operation> variant;

  const Operation& on(int rank) const { return rank == outlier ? *variant : *this; }
};

/// A collective call that blocks until all of its ranks have arrived, after the round's
/// submissions.
struct BlockingCall {
  enum class Kind { AddSet, RemoveSet, MakeBuffer, DropBuffer, Join, EndJoins, Shutdown };

  Kind kind = Kind::AddSet;
  int set = 0;               ///< all but AddSet
  std::vector<int> ranks{};  ///< AddSet: of the new set; Join: those that join now
  int buffer = 0;
  std::size_t size_bytes = 0;
  std::optional<ErrorKind> error{};
  int outlier = -1;  ///< a rank that passes the next two instead
  std::vector<int> outlier_ranks{};
  std::size_t outlier_bytes = 0;
  bool on_thread = false;          ///< Join: concurrent with the rank's other work, until EndJoins
  bool is_settled = true;          ///< Join: the rank has nothing else pending
  std::vector<int> may_be_last{};  ///< Join: the ranks one of which joins last
  int joining = -1;                ///< Join: the number of the joining, for those that end together
};

/// Operations that all ranks submit before they wait for any of them.
struct Round {
  std::vector<int> operations;
  std::optional<BlockingCall> blocking_call;
};

struct Program {
  std::uint64_t seed = 0;
  int size = 2;
  Config config;
  test::FakeOptions network;
  std::vector<std::vector<int>> sets;  ///< by number; the world is first
  int static_sets = 0;                 ///< the first ones, which the Runtime's constructor makes
  int joinings = 0;
  std::vector<Operation> operations;
  std::vector<Round> rounds;

  const std::vector<int>& members(const Operation& operation) const {
    return sets[static_cast<std::size_t>(operation.set)];
  }
};

/// All-reduce or reduce-scatter.
bool is_reduction(const Operation& operation);
/// All-gather or all-to-all, to which ranks may give different numbers of rows.
bool takes_rows(const Operation& operation);

bool is_among(int rank, const std::vector<int>& ranks);
/// The index of a rank in its set.
std::size_t member_of(int rank, const std::vector<int>& ranks);

/// One line: "op 17: allreduce 'n3' on {0, 2}: float32[3, 5], Sum, …".
std::string describe(const Program& program, const Operation& operation);
/// The whole program, one line per event.
std::string describe(const Program& program);

}  // namespace kolo::programs
