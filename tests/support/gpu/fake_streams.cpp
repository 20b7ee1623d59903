#include "support/gpu/fake_streams.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::test {
namespace {

constexpr int kMaxStepsPerRun = 16;

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

/// Unlike std::thread::id, none is used again.
std::uint64_t number_of_this_thread() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = ++last;
  return number;
}

}  // namespace

FakeStreams::FakeStreams(int ranks, std::uint64_t seed) : random_(seed) {
  ranks_.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) at(rank).default_stream = open_stream(rank);
}

FakeStreams::Timeline FakeStreams::host(int rank) {
  std::map<std::uint64_t, Timeline>& hosts = at(rank).hosts;
  const auto [known, is_new] = hosts.try_emplace(number_of_this_thread());
  if (is_new) {
    known->second =
        graph_.add_timeline(name_of_rank(rank) + ", host thread " + std::to_string(hosts.size()));
  }
  return known->second;
}

VectorClock FakeStreams::known_to_hosts(int rank) const {
  VectorClock known;
  for (const auto& [thread, timeline] : at(rank).hosts) known.join(graph_.clock(timeline));
  return known;
}

DeviceStream FakeStreams::open_stream(int rank) {
  const int number = at(rank).streams++;
  const std::string name = number == 0 ? "default stream" : "stream " + std::to_string(number);
  auto stream = std::make_unique<Stream>();
  stream->rank = rank;
  stream->timeline = graph_.add_timeline(name_of_rank(rank) + ", " + name);
  const auto handle = reinterpret_cast<DeviceStream>(stream.get());
  streams_.emplace(handle, std::move(stream));
  return handle;
}

DeviceStream FakeStreams::open_stream_behind(int rank, std::span<const DeviceStream> others) {
  const DeviceStream stream = open_stream(rank);
  const DeviceEvent event = make_event();
  for (const DeviceStream other : others) {
    record(rank, event, other);
    wait(rank, stream, event);
  }
  destroy_event(event);
  return stream;
}

void FakeStreams::close_stream(DeviceStream stream) {
  const auto found = streams_.find(stream);
  found->second->is_open = false;
  if (found->second->items.empty()) streams_.erase(found);
}

DeviceEvent FakeStreams::make_event() {
  auto event = std::make_unique<Event>();
  const auto handle = reinterpret_cast<DeviceEvent>(event.get());
  events_.emplace(handle, std::move(event));
  return handle;
}

void FakeStreams::fail(int rank, std::string error) { at(rank).error = std::move(error); }

void FakeStreams::require_no_failure(int rank, const char* operation) const {
  if (!has_failed(rank)) return;
  throw BackendError(std::string(operation) + " on the GPU of rank " + std::to_string(rank) +
                     " failed: " + at(rank).error);
}

void FakeStreams::put(int rank, DeviceStream stream, std::string name, Poll poll) {
  find(rank, stream, name.c_str())
      .items.push_back({std::move(name), graph_.clock(host(rank)), std::move(poll)});
}

void FakeStreams::put_operation(int rank, DeviceStream stream, MemoryOperation operation,
                                std::function<void()> run) {
  operation.order = next_order();
  const std::string name = operation.name;
  put(rank, stream, name,
      [this, operation = std::move(operation), run = std::move(run)](Timeline timeline) {
        graph_.operate(timeline, operation);
        run();
        return true;
      });
}

void FakeStreams::record(int rank, DeviceEvent event, DeviceStream stream) {
  const auto recording = std::make_shared<Recording>();
  Event& recorded = find(event, "record");
  const Stream& recorded_on = find(rank, stream, "record");
  put(rank, stream, "record", [this, recording, &recorded_on](Timeline timeline) {
    graph_.tick(timeline);
    recording->clock = graph_.clock(timeline);
    recording->step = recorded_on.steps;
    recording->is_done = true;
    return true;
  });
  recorded.last = recording;
}

void FakeStreams::wait(int rank, DeviceStream stream, DeviceEvent event) {
  const std::shared_ptr<Recording> recording = find(event, "wait").last;
  put(rank, stream, "wait", [this, recording](Timeline timeline) {
    if (recording && !recording->is_done) return false;
    if (recording) graph_.join(timeline, recording->clock);
    graph_.tick(timeline);
    return true;
  });
}

std::uint64_t FakeStreams::steps_between(DeviceEvent first, DeviceEvent last) {
  return find(last, "steps_between").last->step - find(first, "steps_between").last->step;
}

bool FakeStreams::has_passed(int rank, DeviceEvent event) {
  require_no_failure(rank, "has_passed");
  const Recording* const recording = find(event, "has_passed").last.get();
  if (recording == nullptr) return true;
  if (recording->is_done) graph_.join(host(rank), recording->clock);
  return recording->is_done;
}

bool FakeStreams::is_done(int rank, DeviceStream stream) {
  const Stream& found = find(rank, stream, "synchronize");
  if (found.items.empty()) graph_.join(host(rank), graph_.clock(found.timeline));
  return found.items.empty();
}

bool FakeStreams::is_done(int rank) {
  require_no_failure(rank, "synchronize");
  if (!is_idle(rank)) return false;
  for (const auto& [handle, stream] : streams_) {
    if (stream->rank == rank) graph_.join(host(rank), graph_.clock(stream->timeline));
  }
  return true;
}

bool FakeStreams::is_empty(int rank, DeviceStream stream) {
  return find(rank, stream, "drain").items.empty();
}

bool FakeStreams::is_idle(int rank) const {
  return has_failed(rank) || std::ranges::none_of(streams_, [rank](const auto& known) {
           return known.second->rank == rank && !known.second->items.empty();
         });
}

std::string FakeStreams::head_of(int rank, DeviceStream stream) {
  const Stream& found = find(rank, stream, "head_of");
  return found.items.empty() ? std::string() : found.items.front().name;
}

void FakeStreams::run_some() {
  const int most = std::uniform_int_distribution<int>(1, kMaxStepsPerRun)(random_);
  for (int i = 0; i < most && run_one(); ++i) {
  }
}

void FakeStreams::run_all() {
  while (run_one()) {
  }
}

bool FakeStreams::run_one() {
  const auto first = static_cast<std::ptrdiff_t>(
      std::uniform_int_distribution<std::size_t>(0, streams_.size() - 1)(random_));
  auto candidate = std::next(streams_.begin(), first);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = *candidate->second;
    if (!stream.items.empty() && !has_failed(stream.rank)) {
      Item& head = stream.items.front();
      graph_.join(stream.timeline, head.launched);
      if (head.poll(stream.timeline)) {
        stream.items.pop_front();
        ++stream.steps;
        if (stream.items.empty() && !stream.is_open) streams_.erase(candidate);
        return true;
      }
    }
    if (++candidate == streams_.end()) candidate = streams_.begin();
  }
  return false;
}

FakeStreams::Stream& FakeStreams::find(int rank, DeviceStream stream, const char* operation) {
  require_no_failure(rank, operation);
  if (stream == nullptr) stream = at(rank).default_stream;
  const auto found = streams_.find(stream);
  const bool is_known = found != streams_.end() && found->second->is_open;
  if (is_known && found->second->rank == rank) return *found->second;
  throw BackendError(std::string(operation) + ": expected a stream of the GPU of rank " +
                     std::to_string(rank) + ", got " +
                     (is_known ? "one of rank " + std::to_string(found->second->rank)
                               : "one that was never made or has been given up"));
}

FakeStreams::Event& FakeStreams::find(DeviceEvent event, const char* operation) {
  const auto found = events_.find(event);
  if (found != events_.end()) return *found->second;
  throw BackendError(std::string(operation) + ": the event was never made or has been given up");
}

}  // namespace kolo::test
