#include "kolo/process_set.hpp"

#include <utility>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/protocol/set_name.hpp"

namespace kolo {

ProcessSet::ProcessSet(Runtime& runtime, int number, std::vector<int> ranks, Matching matching,
                       std::shared_ptr<runtime::Engine> engine)
    : runtime_(&runtime),
      number_(number),
      ranks_(std::move(ranks)),
      matching_(matching),
      engine_(std::move(engine)) {}

int ProcessSet::rank() const { return included() ? engine_->rank() : -1; }
std::string ProcessSet::name() const { return runtime::name_of_set(number_, ranks_); }

Runtime& ProcessSet::runtime() const {
  Runtime* const runtime = runtime_;
  if (runtime != nullptr) return *runtime;
  throw ShutdownError("process set " + name() +
                      ": it has been removed, or its Runtime destroyed on this rank. Keep both as "
                      "long as anything communicates.");
}

std::string ProcessSet::next_name(std::string_view kind) const { return engine()->next_name(kind); }

std::string ProcessSet::next_prefix(std::string_view kind) const {
  return engine()->next_prefix(kind);
}

const std::shared_ptr<runtime::Engine>& ProcessSet::engine() const {
  if (!included()) {
    throw InvalidArgument("rank " + std::to_string(runtime().rank()) +
                          " is not a member of process set " + name() +
                          ". Call the operation on members only.");
  }
  return engine_;
}

std::shared_ptr<std::byte> ProcessSet::allocate(std::size_t bytes) const {
  return engine()->allocate(bytes);
}

ProcessSet::Metrics ProcessSet::metrics() const {
  const runtime::Engine::Metrics engine = this->engine()->metrics();
  Metrics metrics;
  metrics.exchanges = engine.protocol.exchanges;
  metrics.fruitless_exchanges = engine.protocol.fruitless_exchanges;
  metrics.wake_up_requests = engine.protocol.wake_up_requests;
  metrics.negotiations = engine.protocol.negotiations;
  metrics.header_bytes = engine.bytes.headers;
  metrics.bytes_sent = engine.bytes.shared_memory + engine.bytes.messages + engine.bytes.gpus;
  metrics.bytes_packed = engine.bytes.packed;
  metrics.gpu_seconds = engine.gpu_seconds;
  return metrics;
}

ProcessSet& member_set(ProcessSet* set) {
  ProcessSet& member = runtime::set_or_world(set);
  static_cast<void>(member.engine());  // throws if this rank is not a member
  return member;
}

}  // namespace kolo
