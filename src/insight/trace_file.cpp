#include "insight/trace_file.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <concepts>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/signals.hpp"
#include "kolo/algorithm.hpp"

namespace kolo::insight {
namespace {

// Rows of a kind are numbered from kRowsOfKind * kind on; spans that find none free share the
// last.
constexpr int kRowsOfKind = 16;
constexpr std::array<std::string_view, 6> kRowNames{"phases",    "marks", "buckets",
                                                    "negotiate", "queue", "move"};
constexpr int kFormat = 2;
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

void append_json(std::string& to, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  to += '"';
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      to += '\\';
      to += letter;
    } else if (code < 0x20) {
      to += "\\u00";
      to += kHex[code >> 4];
      to += kHex[code & 15];
    } else {
      to += letter;
    }
  }
  to += '"';
}

void append_json(std::string& to, std::integral auto number) {
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  to.append(digits.data(), end);
}

/// In microseconds, with three decimals.
void append_json(std::string& to, Event::Time time) {
  const std::int64_t nanoseconds = time.count();
  if (nanoseconds < 0) to += '-';
  const std::uint64_t size = nanoseconds < 0 ? 0 - static_cast<std::uint64_t>(nanoseconds)
                                             : static_cast<std::uint64_t>(nanoseconds);
  append_json(to, size / 1000);
  const auto rest = static_cast<unsigned>(size % 1000);
  to += '.';
  to += static_cast<char>('0' + rest / 100);
  to += static_cast<char>('0' + rest / 10 % 10);
  to += static_cast<char>('0' + rest % 10);
}

template <class Value>
void append_json(std::string& to, const std::vector<Value>& values) {
  to += '[';
  for (const Value& value : values) {
    append_json(to, value);
    to += ',';
  }
  if (!values.empty()) to.pop_back();
  to += ']';
}

std::string_view kind_of(std::uint8_t failure) {
  return name_of(static_cast<ErrorKind>(failure - 1));
}

std::string name_of_operation(const Recorder::Entry& entry) {
  std::string name(kolo::name_of(static_cast<Collective>(entry.event.collective)));
  return name.append(" ").append(entry.text);
}

/// Since the epoch of the wall clock.
Event::Time wall_clock() { return std::chrono::system_clock::now().time_since_epoch(); }

std::FILE* create(const std::string& folder, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    const int reason = error ? error.value() : errno;  // a folder that cannot be made is not there
    throw BackendError("trace " + path + ": cannot create the file: " + std::strerror(reason) +
                       ". Choose a folder that this rank can write to.");
  }
  std::setvbuf(file, nullptr, _IONBF, 0);
  return file;
}

}  // namespace

TraceFile::TraceFile(const std::string& folder, const Recorder& recorder, std::string_view why)
    : recorder_(recorder),
      path_(folder + "/rank-" + std::to_string(recorder.origin().rank) + ".json"),
      path_before_(path_ + ".new"),
      file_(create(folder, path_before_), &std::fclose) {
  write_header(why);
}

void TraceFile::write_header(std::string_view why) {
  const Origin& origin = recorder_.origin();
  buffer_ = "[\n";
  begin_event("kolo_rank", "__metadata", 'M', {}, 0);
  add_arg("format", kFormat);
  add_arg("rank", origin.rank);
  add_arg("size", origin.size);
  add_arg("host", std::string_view(origin.host));
  add_arg("nodes", origin.node_of_rank);
  add_arg("shares_cores", origin.shares_cores ? 1 : 0);
  add_arg("process", ::getpid());
  add_arg("job", origin.job);
  add_arg("to_world_clock_us", origin.to_world_clock);
  add_arg("clock_us", time_of(Clock::now()));
  add_arg("wall_clock_us", wall_clock());
  add_arg("why", why);
  end_event();
  begin_event("process_name", "__metadata", 'M', {}, 0);
  add_arg("name", std::string_view("rank " + std::to_string(origin.rank) +
                                   (origin.host.empty() ? "" : " on " + origin.host)));
  end_event();
  begin_event("process_sort_index", "__metadata", 'M', {}, 0);
  add_arg("sort_index", origin.rank);
  end_event();
}

/// The first row of the kind that is free; spans come in the order of their ends.
int TraceFile::row_of(Row kind, Event::Time begin, Event::Time end) {
  std::vector<Event::Time>& rows = rows_[kind];
  auto row = std::ranges::find_if(rows, [&](Event::Time free_at) { return free_at <= begin; });
  if (row == rows.end() && rows.size() < kRowsOfKind) {
    const int number = kRowsOfKind * kind + static_cast<int>(rows.size());
    begin_event("thread_name", "__metadata", 'M', {}, number);
    add_arg("name", kRowNames[kind]);
    end_event();
    begin_event("thread_sort_index", "__metadata", 'M', {}, number);
    add_arg("sort_index", number);
    end_event();
    rows.push_back({});
    row = rows.end() - 1;
  }
  if (row == rows.end()) --row;
  *row = end;
  return kRowsOfKind * kind + static_cast<int>(row - rows.begin());
}

void TraceFile::begin_event(std::string_view name, std::string_view category, char type,
                            Event::Time at, int row) {
  line_ = has_events_ ? ",\n" : "";
  has_events_ = true;
  line_ += R"({"name":)";
  append_json(line_, name);
  line_ += R"(,"cat":)";
  append_json(line_, category);
  line_ += R"(,"ph":")";
  line_ += type;
  line_ += R"(","pid":)";
  append_json(line_, recorder_.origin().rank);
  line_ += R"(,"tid":)";
  append_json(line_, row);
  line_ += R"(,"ts":)";
  append_json(line_, at);
  has_args_ = false;
}

/// A complete event; the caller adds arguments and ends it.
void TraceFile::begin_span(std::string_view name, std::string_view category, Row kind,
                           Event::Time begin, Event::Time end) {
  last_row_ = row_of(kind, begin, end);
  begin_event(name, category, 'X', begin, last_row_);
  line_ += R"(,"dur":)";
  append_json(line_, end - begin);
}

template <class Value>
void TraceFile::add_arg(std::string_view name, const Value& value) {
  line_ += has_args_ ? "," : R"(,"args":{)";
  has_args_ = true;
  append_json(line_, name);
  line_ += ':';
  append_json(line_, value);
}

void TraceFile::end_event() {
  line_ += has_args_ ? "}}" : "}";
  buffer_ += line_;
  if (buffer_.size() >= kBufferBytes) flush();
}

/// One end of an arrow from a bucket to the reduction of its gradients.
void TraceFile::write_arrow(char type, std::uint64_t number, Event::Time at) {
  begin_event("gradients", "bucket", type, at, last_row_);
  line_ += R"(,"bp":"e","id":)";
  append_json(line_, number);
  end_event();
}

void TraceFile::write(const Recorder::Entry& entry) {
  const Event& event = entry.event;
  switch (event.kind) {
    case Event::Kind::Pending: break;
    case Event::Kind::Ended: write_operation(entry); break;
    case Event::Kind::Phase:
      begin_span(entry.text, "phase", kPhases, event.begin, event.time);
      add_arg("step", event.step);
      if (event.phase == Phase::Step) add_arg("exposed_us", event.waited);
      end_event();
      break;
    case Event::Kind::Bucket:
      begin_span(entry.text, "bucket", kBuckets, event.begin, event.time);
      add_arg("step", event.step);
      end_event();
      arrows_[entry.text] = ++arrow_count_;
      write_arrow('s', arrow_count_, event.begin);
      break;
    case Event::Kind::Mark:
      begin_span(entry.text, "mark", kMarks, event.begin, event.time);
      end_event();
      break;
  }
}

void TraceFile::write_operation(const Recorder::Entry& entry) {
  const Event& event = entry.event;
  const std::string name = name_of_operation(entry);
  const auto write = [&](std::string_view category, Row kind, Event::Time begin, Event::Time end) {
    begin_span(name, category, kind, begin, end);
    add_operation_args(event);
    end_event();
  };
  const auto reached = [&](Event::Time time) { return time.count() > 0 ? time : event.time; };
  const Event::Time agreed = reached(event.agreed);
  const Event::Time started = reached(event.started);
  write("negotiate", kNegotiations, event.begin, agreed);
  if (started > agreed) write("queue", kQueues, agreed, started);
  if (event.started.count() == 0) return;
  write("move", kMoves, started, event.time);
  if (const auto arrow = arrows_.find(entry.text); arrow != arrows_.end()) {
    write_arrow('f', arrow->second, started);
    arrows_.erase(arrow);
  }
}

void TraceFile::add_operation_args(const Event& event) {
  add_arg("set", std::string_view(recorder_.name_of_set(event.set)));
  add_arg("set_number", event.set);
  add_arg("collective", event.turn);
  add_arg("use", event.use);
  add_arg("bytes", event.bytes);
  add_arg("last_rank", event.last_rank);
  const bool is_late = event.last_rank >= 0 && event.last_rank != recorder_.origin().rank;
  add_arg("late_us",
          is_late ? std::max(event.last_at - event.begin, Event::Time{0}) : Event::Time{0});
  add_arg("waited_us", event.waited);
  add_arg("waited_for", event.waited_for);
  if (event.turn == 0) add_arg("peer", event.peer);
  add_arg("step", event.step);
  add_arg("phase", name_of(event.phase));
  if (event.failure != 0) add_arg("error_kind", kind_of(event.failure));
}

void TraceFile::write(const Recorder::Problem& problem) {
  begin_event(problem.failure.text, "error", 'i', problem.time, 0);
  line_ += R"(,"s":"p")";
  add_arg("kind", name_of(problem.failure.kind));
  add_arg("lost_rank", problem.lost_rank);
  end_event();
}

void TraceFile::write_stack(const std::vector<std::string>& functions) {
  if (functions.empty()) return;
  begin_event("main thread", "stack", 'i', time_of(Clock::now()), 0);
  line_ += R"(,"s":"p")";
  add_arg("functions", functions);
  end_event();
}

void TraceFile::write_gap(std::uint64_t lost) {
  begin_event("events lost", "error", 'i', time_of(Clock::now()), 0);
  line_ += R"(,"s":"p")";
  add_arg("kind", std::string_view("lost events"));
  add_arg("count", lost);
  end_event();
}

void TraceFile::write_unfinished(const std::vector<Recorder::Entry>& entries) {
  const Event::Time now = time_of(Clock::now());
  const Recorder::Activity activity = recorder_.activity();
  if (activity.phase != Phase::None) {
    begin_event(name_of(activity.phase), "phase", 'B', activity.since, kRowsOfKind * kPhases);
    add_arg("step", activity.step);
    end_event();
  }
  std::map<std::pair<int, std::uint64_t>, const Recorder::Entry*> pending;  // by set and use
  for (const Recorder::Entry& entry : entries) {
    const std::pair operation{entry.event.set, entry.event.use};
    if (entry.event.kind == Event::Kind::Pending) pending[operation] = &entry;
    if (entry.event.kind == Event::Kind::Ended) pending.erase(operation);
  }
  for (const auto& [operation, entry] : pending) write_pending(*entry, now);
}

void TraceFile::write_pending(const Recorder::Entry& entry, Event::Time now) {
  const Event& event = entry.event;
  const char* const state = event.started.count() > 0  ? "moving"
                            : event.agreed.count() > 0 ? "queued"
                                                       : "submitted";
  begin_event(name_of_operation(entry), "pending", 'B', event.begin, kRowsOfKind * kMoves);
  add_operation_args(event);
  add_arg("state", std::string_view(state));
  add_arg("waiting_us", now - event.begin);
  add_arg("awaiting", event.waited_for);
  end_event();
}

void TraceFile::publish() {
  flush();
  if (std::rename(path_before_.c_str(), path_.c_str()) == 0) return;
  throw BackendError("trace " + path_ + ": cannot replace the file: " + std::strerror(errno));
}

void TraceFile::flush() {
  const std::size_t written = std::fwrite(buffer_.data(), 1, buffer_.size(), file_.get());
  if (std::exchange(buffer_, {}).size() == written) return;
  throw BackendError("trace " + path_ + ": cannot write: " + std::strerror(errno));
}

void TraceFile::close() {
  buffer_ += "\n]\n";
  flush();
}

std::string write_record(const Recorder& recorder, const std::string& folder,
                         std::string_view why) {
  std::vector<Recorder::Entry> entries;
  const std::uint64_t end = recorder.count();
  const std::uint64_t begin = end - std::min<std::uint64_t>(end, Recorder::kCapacity);
  for (std::uint64_t number = begin; number < end; ++number) {
    if (auto entry = recorder.read(number)) entries.push_back(*std::move(entry));
  }
  TraceFile file(folder, recorder, why);
  // First, and at once: the process may be killed soon.
  for (const Recorder::Problem& problem : recorder.problems()) file.write(problem);
  file.write_unfinished(entries);
  file.publish();
  file.write_stack(Signals::main_thread_stack());
  for (const Recorder::Entry& entry : entries) file.write(entry);
  file.close();
  return file.path();
}

}  // namespace kolo::insight
