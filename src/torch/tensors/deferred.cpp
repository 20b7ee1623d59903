#include "kolo/torch/deferred.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/tensors/construction_memory.hpp"
#include "torch/tensors/deferred.hpp"
#include "torch/tensors/deferred_storage.hpp"
#include "torch/tensors/parameter_storage.hpp"

namespace kolo::tensors {
namespace {

using Blocks = std::vector<std::span<std::byte>>;

const char* const kWhat = "kolo::deferred";

std::string random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard guard(generator.mutex());
  const at::Tensor state = generator.get_state();
  const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  return std::to_string(std::hash<std::string_view>()(bytes));
}

/// Random draws must not depend on values of tensors, which differ on most ranks.
void require_same_draws(ProcessSet& world, const std::string& before) {
  const std::vector<std::string> all = allgather_object(
      before + " " + random_state(), {.name = "deferred.draws", .process_set = &world});
  const auto state_before = [](const std::string& both) { return both.substr(0, both.find(' ')); };
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0] || state_before(all[rank]) != state_before(all[0])) continue;
    throw InvalidArgument(std::string(kWhat) + ": the constructor has drawn other random numbers " +
                          "on rank " + std::to_string(rank) +
                          " than on rank 0. It must not decide by the values of tensors, which "
                          "ranks do not have: construct such a model without kolo::deferred.");
  }
}

std::vector<Fact> facts_of(const torch::nn::Module& module, const Blocks& others) {
  std::vector<Fact> facts;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    facts.push_back({"parameter", c10::str("'", parameter.key(), "', ", tensor.scalar_type(), " ",
                                           tensor.sizes())});
  }
  facts.push_back({"number of other tensors", std::to_string(others.size())});
  for (const auto& bytes : others) {
    facts.push_back({"another tensor", "of " + std::to_string(bytes.size()) + " bytes"});
  }
  return facts;
}

}  // namespace

void construct_deferred(const std::function<const torch::nn::Module&()>& construct) {
  Runtime& runtime = Runtime::current();
  ProcessSet& world = runtime.world();
  const bool keeps_parameters = runtime.local_rank() == 0;
  const auto memory = std::make_shared<ConstructionMemory>(
      keeps_parameters ? ConstructionMemory::Kind::Real : ConstructionMemory::Kind::Scratch);
  const std::string before = random_state();
  const torch::nn::Module* made = nullptr;
  run_on_all(world, "deferred.constructed", kWhat, "the constructor", [&] {
    const ConstructionMemory::Scope scope(memory);
    made = &construct();
  });
  const torch::nn::Module& module = *made;
  require_same_draws(world, before);
  const Blocks others = memory->blocks(module.parameters());
  agree(world, "deferred.agreement", kWhat, facts_of(module, others), {});
  for (const auto& parameter : module.named_parameters()) {
    if (keeps_parameters || !ConstructionMemory::has(parameter.value())) continue;
    defer_storage(parameter.value(), parameter.key());
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    memory->make_real(others[i]);
    broadcast(
        {others[i].data(), DType::UInt8, {static_cast<std::int64_t>(others[i].size())}, Device{}},
        0, {.name = "deferred." + std::to_string(i), .process_set = &world});
  }
}

bool is_constructed(const at::Tensor& tensor) {
  return is_deferred(tensor) || ConstructionMemory::has(tensor);
}

void fill_deferred(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                   ProcessSet& set) {
  std::vector<std::pair<std::string, at::Tensor>> constructed;
  std::vector<at::Tensor> deferred;
  for (const auto& [name, tensor] : tensors) {
    if (!is_constructed(tensor)) continue;
    constructed.emplace_back(name, tensor);
    if (is_deferred(tensor)) deferred.push_back(tensor);
  }
  allocate_deferred(deferred);
  for (const auto& [name, tensor] : constructed) {
    if (is_constructed(tensor)) make_own_copy(tensor);  // so that is_constructed() becomes false
  }
  broadcast_parameters(constructed, set.ranks().front(), &set);
}

}  // namespace kolo::tensors
