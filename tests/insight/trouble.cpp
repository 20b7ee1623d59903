// A job of a few ranks in which one makes trouble, for kolo-trace to explain: trouble <kind>.
// Kinds: fine, mismatch, deadline, killed, stopped, throws, hangs, late.
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
#include "kolo/insight.hpp"
#include "kolo/runtime.hpp"

namespace {

using namespace std::chrono_literals;
using kolo::insight::Phase;

constexpr int kTroubled = 1;       // the rank
constexpr int kTroubledStep = 12;  // counted from 1
constexpr int kSteps = 20;

void reduce(const std::string& name, std::size_t count) {
  std::vector<float> values(count, 1.0F);
  const kolo::TensorView view{.data = values.data(),
                              .dtype = kolo::DType::Float32,
                              .shape = {static_cast<std::int64_t>(count)}};
  kolo::allreduce(view, view, {.name = name});
}

void make_trouble(const std::string& kind) {
  if (kind == "killed") std::raise(SIGKILL);
  if (kind == "stopped") std::raise(SIGSTOP);
  if (kind == "throws") throw std::runtime_error("this batch is damaged");
  if (kind == "deadline") std::this_thread::sleep_for(4s);
  if (kind == "hangs") {
    std::fputs("hangs\n", stderr);
    std::this_thread::sleep_for(10min);
  }
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
  const bool differs = kind == "mismatch" && number == kTroubledStep && is_troubled;
  reduce("layer4.weight", differs ? 999 : 1000);
  recorder.enter(Phase::Step);
  recorder.enter(Phase::Forward);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string kind = count > 1 ? arguments[1] : "fine";
  try {
    kolo::Runtime runtime;
    for (int number = 1; number <= kSteps; ++number) step(runtime, kind, number);
  } catch (const kolo::Error& error) {  // others end the process
    std::fprintf(stderr, "caught: %s\n", error.what());
    return 3;
  }
  return 0;
}
