#include "kolo/insight.hpp"

#include <array>
#include <cstddef>
#include <utility>

#include "insight/insight.hpp"
#include "kolo/runtime.hpp"

namespace kolo {
namespace {

using insight::Event;

Event::Time now() { return insight::time_of(insight::Clock::now()); }

void add_mark(std::string_view name, Event::Time begin, Event::Time end) {
  Event event{.kind = Event::Kind::Mark};
  event.begin = begin;
  event.time = end;
  Runtime::current().insight().recorder().add(event, name);
}

}  // namespace

std::string dump_record(const std::string& folder) {
  return Runtime::current().insight().write_record(folder, "requested");
}

void start_timeline(const std::string& folder) {
  Runtime::current().insight().start_timeline(folder);
}

void stop_timeline() { Runtime::current().insight().stop_timeline(); }

void mark(std::string_view name) {
  Runtime::current().insight().require_creator_process();
  const Event::Time at = now();
  add_mark(name, at, at);
}

MarkedSpan::MarkedSpan(std::string name) : name_(std::move(name)), begin_(now().count()) {}

MarkedSpan::~MarkedSpan() {
  if (Runtime::has_current()) add_mark(name_, Event::Time{begin_}, now());
}

void enter_phase(TrainingPhase phase) {
  if (!Runtime::has_current()) return;
  using insight::Phase;
  constexpr std::array kPhases{Phase::Forward, Phase::Backward, Phase::Step};
  Runtime::current().insight().recorder().enter(kPhases[static_cast<std::size_t>(phase)]);
}

Metrics metrics() { return Runtime::current().insight().metrics(); }

void start_metrics(std::chrono::milliseconds interval,
                   std::function<void(const Metrics&)> function) {
  Runtime::current().insight().start_metrics(interval, std::move(function));
}

void stop_metrics() { Runtime::current().insight().stop_metrics(); }

}  // namespace kolo
