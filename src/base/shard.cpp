#include "kolo/shard.hpp"

#include <string>

#include "kolo/error.hpp"

namespace kolo {

std::string_view name_of(Shard shard) {
  switch (shard) {
    case Shard::None: return "none";
    case Shard::Optimizer: return "optimizer";
    case Shard::Gradients: return "gradients";
    case Shard::Full: return "full";
  }
  return "unknown";
}

Shard shard_named(std::string_view name) {
  std::string known;
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    if (name == name_of(shard)) return shard;
    known += (known.empty() ? "" : ", ") + std::string(name_of(shard));
  }
  throw InvalidArgument("there is no shard mode '" + std::string(name) + "'. Known: " + known +
                        ".");
}

}  // namespace kolo
