#include "shard/watched_parameters.hpp"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "kolo/runtime.hpp"
#include "train/sharding/gathered_units.hpp"
#include "train/sharding/operator_watch.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace shard {

void watch_parameters(const torch::nn::Module& model) {
  using kolo::train::GatheredUnits;
  GatheredUnits::Part part{.shard = at::empty({0}), .begin = 0, .members = {}};
  auto& memory = *new std::vector<at::DataPtr>;  // never freed, as storages refer to it
  for (const at::Tensor& parameter : model.parameters()) {
    part.members.push_back({parameter.storage(), 0});
    memory.push_back(parameter.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr()));
  }
  const auto units = std::make_shared<GatheredUnits>(
      std::vector<GatheredUnits::Unit>{{"parameters", {part}}},
      kolo::train::UnitSlots(1, 0, c10::Device(c10::kCPU)),
      kolo::OperationOptions{.process_set = &kolo::Runtime::current().world()}, "watched",
      std::make_shared<kolo::train::UnitCalls>("watched"));
  units->pause(true);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    kolo::train::bind_storage(part.members[i].storage, memory[i].get());
  }
  kolo::train::watch_operators(units);
}

}  // namespace shard
