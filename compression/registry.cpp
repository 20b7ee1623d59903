#include "compression/registry.hpp"

#include <string>

#include "compression/compressors.hpp"
#include "kolo/error.hpp"

namespace kolo::compression {

Registry::Registry() {
  // The list: one line a compressor.
  add(none());
  add(fp16());
  add(bf16());
}

void Registry::add(const Compressor& compressor) {
  if (compressor.name().empty()) {
    throw InvalidArgument("compressor: the name must not be empty");
  }
  for (const Compressor* known : compressors_) {
    if (known->name() == compressor.name()) {
      throw InvalidArgument("compressor \"" + std::string(compressor.name()) +
                            "\": the name is taken; choose another one");
    }
  }
  compressors_.push_back(&compressor);
}

const Compressor& Registry::find(std::string_view name) const {
  std::string choices;
  for (const Compressor* compressor : compressors_) {
    if (compressor->name() == name) return *compressor;
    choices += (choices.empty() ? "" : ", ") + std::string(compressor->name());
  }
  throw InvalidArgument("compressor \"" + std::string(name) +
                        "\": there is none of that name; choose one of " + choices);
}

}  // namespace kolo::compression
