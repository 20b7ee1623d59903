#include "runtime/data/memory_overlap.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace kolo::runtime {
namespace {

struct Use {
  const char* what = "";
  std::size_t tensor = 0;
  bool is_written = false;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

Use use_of(const char* what, std::size_t tensor, bool is_written,
           std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  return {what, tensor, is_written, begin, begin + memory.size()};
}

bool is_in_place(Collective collective, const UsedMemory& tensor) {
  if (tensor.in_place == nullptr) return false;
  const auto& part = collective == Collective::AllGather ? tensor.input : tensor.output;
  return part.data() == tensor.in_place;
}

/// In the order of addresses, without empty ones.
std::vector<Use> uses_of(Collective collective, std::span<const UsedMemory> tensors) {
  std::vector<Use> uses;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [input, output, residual, in_place] = tensors[i];
    if (is_in_place(collective, tensors[i])) {
      const auto& whole = input.size() > output.size() ? input : output;
      uses.push_back(use_of("the tensor", i, true, whole));
    } else {
      uses.push_back(use_of("the input", i, false, input));
      uses.push_back(use_of("the output", i, true, output));
    }
    uses.push_back(use_of("the residual", i, true, residual));
  }
  std::erase_if(uses, [](const Use& use) { return use.begin == use.end; });
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    return std::tie(a.begin, a.end, a.tensor) < std::tie(b.begin, b.end, b.tensor);
  });
  return uses;
}

const char* rule_of(Collective collective) {
  switch (collective) {
    case Collective::AllReduce: return "An output may be its input's memory";
    case Collective::ReduceScatter: return "An output may be this rank's rows of its input";
    case Collective::AllGather: return "An input may be this rank's rows of its output";
    default: return "A tensor may be no part of another";
  }
}

std::string text_of(Collective collective, const Use& first, const Use& second, bool is_group) {
  const auto name_of = [&](const Use& use) {
    return use.what + (is_group ? " of tensor " + std::to_string(use.tensor) : std::string());
  };
  const std::size_t distance = second.begin - first.begin;
  const std::string place =
      distance == 0 ? "with it" : std::to_string(distance) + " bytes before it";
  return name_of(second) + " overlaps " + name_of(first) + ", which begins " + place + ". " +
         rule_of(collective) +
         "; otherwise what an operation writes must lie apart from its other memory.";
}

}  // namespace

std::string overlap_in(Collective collective, std::span<const UsedMemory> tensors) {
  const Use* read = nullptr;     // of those before, the one that reaches farthest
  const Use* written = nullptr;  // likewise
  const std::vector<Use> uses = uses_of(collective, tensors);
  for (const Use& use : uses) {
    const Use* const forbidden[] = {written, use.is_written ? read : nullptr};
    for (const Use* const before : forbidden) {
      if (before == nullptr || before->end <= use.begin) continue;
      return text_of(collective, *before, use, tensors.size() > 1);
    }
    const Use*& farthest = use.is_written ? written : read;
    if (farthest == nullptr || farthest->end < use.end) farthest = &use;
  }
  return {};
}

}  // namespace kolo::runtime
