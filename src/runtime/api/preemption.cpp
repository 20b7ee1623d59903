#include "kolo/preemption.hpp"

#include <cstdint>

#include "base/signals.hpp"
#include "insight/insight.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace kolo {

bool preempted() {
  Runtime::current().insight().let_preempt();
  std::uint8_t is_asked = Signals::is_preempted() ? 1 : 0;
  const TensorView view{&is_asked, DType::UInt8, {1}};
  allreduce(view, view, {.op = ReduceOp::Max, .name = "kolo.preempted"});
  return is_asked != 0;
}

void request_preemption() { Signals::request_preemption(); }

}  // namespace kolo
