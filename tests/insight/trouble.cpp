// A job of a few ranks in which one makes trouble, for kolo-trace to explain: trouble <kind>.
// Kinds: mismatch, deadline, killed, stopped, throws, hangs, skips, crosswise, healthy,
// late.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "insight/insight.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/process_set.hpp"
#include "kolo/runtime.hpp"

namespace {

using namespace std::chrono_literals;
using kolo::insight::Phase;

constexpr int kTroubled = 1;       // the rank
constexpr int kTroubledStep = 12;  // counted from 1
constexpr int kSteps = 20;

void reduce(const std::string& name, std::size_t count, kolo::ProcessSet* set = nullptr) {
  std::vector<float> values(count, 1.0F);
  const kolo::TensorView view{.data = values.data(),
                              .dtype = kolo::DType::Float32,
                              .shape = {static_cast<std::int64_t>(count)}};
  kolo::allreduce(view, view, {.name = name, .process_set = set});
}

void make_trouble(const std::string& kind) {
  if (kind == "killed") std::raise(SIGKILL);
  if (kind == "stopped") std::raise(SIGSTOP);
  if (kind == "throws") throw std::runtime_error("this batch is damaged");
  if (kind == "deadline") std::this_thread::sleep_for(4s);
  if (kind == "hangs" || kind == "pauses") {
    std::fputs((kind + "\n").c_str(), stderr);
    std::this_thread::sleep_for(kind == "hangs" ? 10min : 5s);
  }
}

/// Ranks use two sets of the same members in another order.
void use_crosswise(kolo::Runtime& runtime) {
  kolo::ProcessSet& first = runtime.add_process_set({0, kTroubled});
  kolo::ProcessSet& second = runtime.add_process_set({0, kTroubled});
  if (runtime.rank() > kTroubled) return;
  const bool is_other = runtime.rank() == kTroubled;
  reduce("norm", 1, is_other ? &second : &first);
  reduce("norm", 1, is_other ? &first : &second);
}

/// A step of training, without a model.
void step(kolo::Runtime& runtime, const std::string& kind, int number) {
  kolo::insight::Recorder& recorder = runtime.insight().recorder();
  const bool is_troubled = runtime.rank() == kTroubled;
  recorder.enter(Phase::Forward);
  std::this_thread::sleep_for(2ms);
  recorder.enter(Phase::Backward);
  reduce("layer9.weight", 1000);
  if (kind == "late" && is_troubled) std::this_thread::sleep_for(10ms);
  if (number == kTroubledStep && is_troubled) make_trouble(kind);
  if (number == kTroubledStep && kind == "healthy") make_trouble("pauses");
  if (number == kTroubledStep && kind == "crosswise") use_crosswise(runtime);
  if (number == kTroubledStep && kind == "skips" && is_troubled) {
    recorder.enter(Phase::Step);
    return recorder.enter(Phase::Forward);
  }
  const bool differs = kind == "mismatch" && number == kTroubledStep && is_troubled;
  reduce("layer4.weight", differs ? 999 : 1000);
  recorder.enter(Phase::Step);
  recorder.enter(Phase::Forward);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string kind = count > 1 ? arguments[1] : "";
  try {
    kolo::Runtime runtime;
    for (int number = 1; number <= kSteps; ++number) step(runtime, kind, number);
  } catch (const kolo::Error& error) {  // others end the process
    std::fprintf(stderr, "caught: %s\n", error.what());
    return 3;
  }
  return 0;
}
