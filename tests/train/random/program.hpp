#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/random.hpp"
#include "train/random/rank.hpp"
#include "train/random/reference.hpp"

/// Random training programs: their calls.
namespace kolo::random_training {

/// One call, made by all ranks that have not joined.
class Call {
 public:
  virtual ~Call() = default;
  /// As in the program.
  virtual std::string text() const = 0;
  virtual Expected in_one_process(Reference& reference) const = 0;
  /// Throws std::runtime_error if it does not return what is expected.
  virtual void on_rank(Rank& rank, const Expected& expected) const = 0;
  /// What a rank does for it once it returns from join().
  virtual void missed(Rank& /*rank*/, const Expected& /*expected*/) const {}
  /// Whether ranks that have joined take part again.
  virtual bool ends_absence() const { return false; }
};
using CallPtr = std::shared_ptr<const Call>;

/// What calls are drawn from.
struct Draw {
  simulator::Random& random;
  const Reference& reference;
  int number;  ///< of the call

  int optimizer() const { return random.between(0, reference.plan().optimizers() - 1); }
  /// Any but the first two, which stay as they are.
  int layer() const { return random.between(2, reference.plan().model.count() - 1); }
  Side side() const {
    return reference.setup().owns_optimizer || random.one_in(2) ? Side::Wrapper : Side::Wrapped;
  }
  std::string member(int optimizer) const { return random.pick(reference.members(optimizer)); }
};

/// A letter of the alphabet.
struct Letter {
  /// Programs with an Accelerator leave the steps to it.
  enum class In { All, Plain, Accelerated };

  int weight;
  std::function<CallPtr(const Draw& draw)> draw;
  In programs = In::All;
};
const std::vector<Letter>& alphabet();

/// At the end of each part: gradients are dropped, all join, and parameters are compared.
std::vector<CallPtr> ending(const Plan& plan, bool is_last);
/// At the beginning of a later part.
CallPtr beginning();

struct Line {
  CallPtr call;
  Expected expected;
  int number = -1;  ///< of the drawn call; -1: of an ending
};
/// One part of a program, with what its calls must do.
struct Part {
  Setup setup;
  Structure structure;
  std::vector<Line> lines;
};
struct Program {
  Plan plan;
  std::vector<Part> parts;
  int drawn = 0;  ///< calls

  std::string text() const;
  /// Calls that are made, without those of endings.
  std::vector<int> made() const;
};

/// Draws a program. If `kept` is not null, without the other calls.
Program draw_program(const Plan& plan, int calls, const std::vector<int>* kept = nullptr);

}  // namespace kolo::random_training
