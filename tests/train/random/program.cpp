#include "train/random/program.hpp"

#include <algorithm>
#include <sstream>

namespace kolo::random_training {
namespace {

CallPtr draw_call(const Draw& draw) {
  const bool is_accelerated = draw.reference.plan().is_accelerated;
  const auto weight_of = [&](const Letter& letter) {
    const auto other = is_accelerated ? Letter::In::Plain : Letter::In::Accelerated;
    return letter.programs == other ? 0 : letter.weight;
  };
  const std::vector<Letter>& letters = alphabet();
  int total = 0;
  for (const Letter& letter : letters) total += weight_of(letter);
  int place = draw.random.between(0, total - 1);
  for (const Letter& letter : letters) {
    place -= weight_of(letter);
    if (place < 0) return letter.draw(draw);
  }
  return nullptr;
}

/// The drawn calls, each made in the state that those before leave.
std::vector<std::vector<CallPtr>> draw_calls(const Plan& plan, int calls) {
  simulator::Random random(~plan.seed);
  Reference reference(plan);
  std::vector<std::vector<CallPtr>> parts;
  int number = 0;
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    reference.begin_part(plan.parts[i]);
    std::vector<CallPtr>& own = parts.emplace_back();
    const auto count = static_cast<std::size_t>(calls) / plan.parts.size();
    for (int tries = 0; own.size() < count && tries < 20 * calls; ++tries) {
      CallPtr call = draw_call({random, reference, number});
      if (call == nullptr || !call->in_one_process(reference).is_made()) continue;
      own.push_back(std::move(call));
      ++number;
    }
    for (const CallPtr& call : ending(plan, true)) call->in_one_process(reference);
  }
  return parts;
}

}  // namespace

Program draw_program(const Plan& plan, int calls, const std::vector<int>* kept) {
  Program program;
  program.plan = plan;
  const std::vector<std::vector<CallPtr>> drawn = draw_calls(plan, calls);
  Reference reference(plan);
  int number = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    reference.begin_part(plan.parts[i]);
    Part part{plan.parts[i], reference.structure(), {}};
    const auto add = [&](const CallPtr& call, int index) {
      Expected expected = call->in_one_process(reference);
      if (expected.is_made()) part.lines.push_back({call, std::move(expected), index});
      return part.lines.size() > 0 && part.lines.back().call == call;
    };
    if (i > 0) add(beginning(), -1);
    for (const CallPtr& call : drawn[i]) {
      const int own = number++;
      if (kept == nullptr || std::ranges::find(*kept, own) != kept->end()) add(call, own);
    }
    bool can_resume = true;
    for (const CallPtr& call : ending(plan, i + 1 == drawn.size())) can_resume = add(call, -1);
    program.parts.push_back(std::move(part));
    if (!can_resume) break;
  }
  program.drawn = number;
  return program;
}

std::string Program::text() const {
  std::ostringstream text;
  text << plan.text();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text << parts[i].setup.text();
    for (const Line& line : parts[i].lines) {
      text << "  " << line.call->text();
      if (!line.expected.returns()) {
        text << "  // throws:";
        for (const std::string& words : line.expected.words) text << " " << words << " …";
      }
      text << "\n";
    }
  }
  return text.str();
}

std::vector<int> Program::made() const {
  std::vector<int> numbers;
  for (const Part& part : parts) {
    for (const Line& line : part.lines) {
      if (line.number >= 0) numbers.push_back(line.number);
    }
  }
  return numbers;
}

}  // namespace kolo::random_training
