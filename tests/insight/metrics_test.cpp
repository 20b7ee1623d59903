// Counts of operations with known times, their two texts, and the file that is replaced.
#include "kolo/metrics.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>

#include "comm/file_descriptor.hpp"
#include "insight/insight.hpp"
#include "insight/meter.hpp"
#include "insight/metrics_file.hpp"
#include "insight/metrics_server.hpp"
#include "insight/prometheus.hpp"
#include "kolo/runtime.hpp"

namespace kolo::test::metrics_test {

using namespace std::chrono_literals;
using insight::Event;
using insight::Insight;
using insight::Meter;

constexpr insight::Origin kOrigin{.rank = 1, .size = 4};

/// An operation that is submitted at 1 s; the other times follow it by these durations.
Event ended(Event::Time agreed, Event::Time started, Event::Time end) {
  Event event{.kind = Event::Kind::Ended};
  event.begin = 1s;
  event.agreed = event.begin + agreed;
  event.started = event.begin + started;
  event.time = event.begin + end;
  return event;
}

Metrics read(const Meter& meter) {
  Metrics metrics;
  metrics.late_seconds.resize(kOrigin.size);
  metrics.data_wait_seconds.resize(kOrigin.size);
  metrics.open_wait_seconds.resize(kOrigin.size);
  meter.add_to(metrics);
  return metrics;
}

TEST(MeterTest, BoundsOfBucketsBelongToThem) {
  constexpr std::size_t kLast = Metrics::Histogram::kBounds;
  struct Duration {
    Event::Time time;
    std::size_t bucket;
  };
  const std::vector<Duration> durations{{0ns, 0},
                                        {1us, 0},
                                        {1001ns, 1},
                                        {2us, 1},
                                        {2001ns, 2},
                                        {1024us, 10},
                                        {1024001ns, 11},
                                        {134217728us, kLast - 1},
                                        {134217728001ns, kLast},
                                        {1h, kLast}};
  Meter meter(kOrigin);
  std::array<std::uint64_t, kLast + 1> expected{};
  double sum = 0.0;
  for (const Duration& duration : durations) {
    meter.count(ended(0ns, 0ns, duration.time));
    ++expected[duration.bucket];
    sum += std::chrono::duration<double>(duration.time).count();
    if (duration.bucket < kLast) {
      EXPECT_LE(std::chrono::duration<double>(duration.time).count(),
                Metrics::Histogram::bound(duration.bucket));
    }
  }
  const Metrics metrics = read(meter);
  EXPECT_EQ(metrics.move.counts, expected);
  EXPECT_EQ(metrics.move.count(), durations.size());
  EXPECT_DOUBLE_EQ(metrics.move.sum, sum);
  EXPECT_EQ(metrics.agree.counts[0], durations.size());
}

TEST(MeterTest, OperationsCountAsFarAsTheyCame) {
  Meter meter(kOrigin);
  Event whole = ended(3us, 10us, 30us);
  whole.collective = static_cast<std::uint8_t>(Collective::Broadcast);
  meter.count(whole);
  Event refused = ended(0ns, 0ns, 5us);  // before anything was agreed
  refused.agreed = refused.started = {};
  refused.failure = 1;
  meter.count(refused);
  Event stopped = ended(1us, 0ns, 5us);  // in the queue
  stopped.started = {};
  stopped.failure = 1;
  meter.count(stopped);
  Event message = ended(0ns, 2us, 4us);
  message.agreed = {};
  message.collective = static_cast<std::uint8_t>(Collective::Receive);
  meter.count(message);
  const Metrics metrics = read(meter);
  ASSERT_EQ(metrics.operations.size(), 3U);
  EXPECT_EQ(metrics.operations.at("broadcast").ended, 1U);
  EXPECT_EQ(metrics.operations.at("broadcast").failed, 0U);
  EXPECT_EQ(metrics.operations.at("allreduce").ended, 2U);
  EXPECT_EQ(metrics.operations.at("allreduce").failed, 2U);
  EXPECT_EQ(metrics.operations.at("receive").ended, 1U);
  EXPECT_EQ(metrics.agree.count(), 2U);
  EXPECT_DOUBLE_EQ(metrics.agree.sum, 4e-6);
  EXPECT_EQ(metrics.queue.count(), 1U);
  EXPECT_DOUBLE_EQ(metrics.queue.sum, 7e-6);
  EXPECT_EQ(metrics.move.count(), 2U);
  EXPECT_DOUBLE_EQ(metrics.move.sum, 22e-6);
}

TEST(MeterTest, WaitsAtOnceCountOnce) {
  Meter meter(kOrigin);
  const auto late = [&](int rank, Event::Time begin, Event::Time last_at) {
    Event event = ended(0ns, 0ns, 0ns);
    event.last_rank = rank;
    event.begin = begin;
    event.last_at = last_at;
    meter.count(event);
  };
  late(2, 100ms, 130ms);
  late(2, 110ms, 140ms);  // 10 ms more
  late(2, 120ms, 135ms);  // nothing
  late(2, 200ms, 201ms);
  late(0, 110ms, 115ms);
  late(kOrigin.rank, 100ms, 130ms);  // this rank was the last
  late(-1, 100ms, 130ms);            // unknown
  late(3, 100ms, 90ms);              // clocks differ
  const auto waited = [&](int rank, Event::Time started, Event::Time end, Event::Time time) {
    Event event = ended(0ns, started, end);
    event.waited = time;
    event.waited_for = rank;
    meter.count(event);
  };
  for (int i = 0; i < 3; ++i) waited(3, 10ms + i * 1ns, 20ms, 8ms);  // a batch of three
  waited(0, 20ms, 25ms, 4ms);
  waited(-1, 25ms, 26ms, 1ms);
  const Metrics metrics = read(meter);
  const std::vector<double> late_expected{0.005, 0.0, 0.041, 0.0};
  const std::vector<double> wait_expected{0.004, 0.0, 0.0, 0.008};
  for (std::size_t rank = 0; rank < late_expected.size(); ++rank) {
    EXPECT_DOUBLE_EQ(metrics.late_seconds[rank], late_expected[rank]) << rank;
    EXPECT_DOUBLE_EQ(metrics.data_wait_seconds[rank], wait_expected[rank]) << rank;
  }
  EXPECT_DOUBLE_EQ(metrics.unknown_data_wait_seconds, 0.001);
}

TEST(MeterTest, OpenWaitsLastUntilTheirOperationEnds) {
  Insight insight(kOrigin, "");
  Meter& first = insight.take_meter();
  Meter& second = insight.take_meter();
  const Event::Time now = insight::time_of(insight::Clock::now());
  first.set_open_wait(now - 20s, 3);
  second.set_open_wait(now - 50s, 3);
  const auto is_near = [](double seconds, double expected) {
    return seconds >= expected && seconds < expected + 60.0;
  };
  Metrics metrics = insight.metrics();
  EXPECT_TRUE(is_near(metrics.open_wait_seconds[3], 50)) << "the longest";
  EXPECT_EQ(metrics.open_wait_seconds[0], 0.0);
  EXPECT_EQ(metrics.unknown_open_wait_seconds, 0.0);
  second.end_open_wait(now - 20s);  // a younger one
  EXPECT_TRUE(is_near(insight.metrics().open_wait_seconds[3], 50));
  second.end_open_wait(now - 50s);
  first.set_open_wait(now - 20s, -1);
  metrics = insight.metrics();
  EXPECT_EQ(metrics.open_wait_seconds[3], 0.0);
  EXPECT_TRUE(is_near(metrics.unknown_open_wait_seconds, 20));
  first.set_open_wait({}, -1);
  EXPECT_EQ(insight.metrics().unknown_open_wait_seconds, 0.0);
}

TEST(MeterTest, EnginesThatEndLeaveTheirCounts) {
  Insight insight(kOrigin, "");
  Meter& world = insight.take_meter();
  world.set({.messages = 1000, .headers = 5});
  const Meter* first = nullptr;
  for (std::uint64_t engine = 1; engine <= 3; ++engine) {
    Meter& meter = insight.take_meter();
    EXPECT_NE(&meter, &world);
    if (first == nullptr) first = &meter;
    EXPECT_EQ(&meter, first) << "memory grows with every engine";
    meter.set({.shared_memory = engine, .messages = 10 * engine});
    meter.set({.shared_memory = 2 * engine, .messages = 20 * engine});
    meter.count_stall();
    meter.count(ended(1us, 1us, 1us));
    insight.give_back(meter);
  }
  const Metrics metrics = insight.metrics();
  EXPECT_EQ(metrics.bytes.shared_memory, 12U);
  EXPECT_EQ(metrics.bytes.messages, 1120U);
  EXPECT_EQ(metrics.bytes.headers, 5U);
  EXPECT_EQ(metrics.stalls, 3U);
  EXPECT_EQ(metrics.operations.at("allreduce").ended, 3U);
}

TEST(MeterTest, StepsAndTheirWaitsComeFromTheRecorder) {
  Insight insight(kOrigin, "");
  EXPECT_LT(insight.metrics().elapsed_seconds, 60.0);  // not since the clock's epoch
  insight::Recorder& recorder = insight.recorder();
  recorder.add_blocked(50ms);  // before the first step
  for (int step = 0; step < 3; ++step) {
    recorder.enter(insight::Phase::Backward);
    recorder.add_blocked(2ms);
    recorder.enter(insight::Phase::Step);
    recorder.add_blocked(1ms);
    recorder.enter(insight::Phase::Forward);
  }
  recorder.add_blocked(100ms);
  const Metrics metrics = insight.metrics();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_NEAR(metrics.last_step_time, std::chrono::duration<double>(now).count(), 60.0);
  EXPECT_EQ(metrics.steps, 3U);
  EXPECT_DOUBLE_EQ(metrics.exposed_seconds, 0.009);
  EXPECT_DOUBLE_EQ(metrics.blocked_seconds, 0.159);
}

TEST(MetricsFunctionTest, IsCalledSoonThenAtIntervalsAndAtTheEnd) {
  Insight insight(kOrigin, "");
  std::atomic<int> calls{0};
  std::uint64_t stalls = 0;
  insight.start_metrics(1ms, [&](const Metrics& metrics) {
    stalls = metrics.stalls;
    if (++calls == 2) throw std::range_error("on purpose");
  });
  while (calls < 4) std::this_thread::yield();
  insight.take_meter().count_stall();
  insight.stop_metrics();
  EXPECT_EQ(stalls, 1U) << "the last call was before stop_metrics()";
  const int before = calls;
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(calls, before);
}

TEST(MetricsFunctionTest, AnotherOneReplacesIt) {
  std::atomic<int> first{0};
  std::atomic<int> second{0};
  {
    Insight insight(kOrigin, "");
    insight.start_metrics(1h, [&](const Metrics&) { ++first; });
    insight.start_metrics(1h, [&](const Metrics&) { ++second; });
    EXPECT_EQ(first, 2) << "soon, and at its end";
  }
  EXPECT_EQ(second, 2);
}

TEST(MetricsFunctionTest, RefusesWhatWouldHang) {
  Insight insight(kOrigin, "");
  const auto nothing = [](const Metrics&) {};
  EXPECT_THROW(insight.start_metrics(1s, nullptr), InvalidArgument);
  EXPECT_THROW(insight.start_metrics(0s, nothing), InvalidArgument);
  EXPECT_THROW(insight.start_metrics(-1s, nothing), InvalidArgument);
  std::atomic<int> refused{0};
  const auto refuses = [&](auto&& call) {
    try {
      call();
    } catch (const InvalidArgument&) {
      ++refused;
    }
  };
  insight.start_metrics(std::chrono::milliseconds::max(), [&](const Metrics&) {
    refuses([&] { insight.stop_metrics(); });
    refuses([&] { insight.start_metrics(1h, nothing); });
    refuses([] { shutdown(); });
  });
  while (refused < 3) std::this_thread::yield();
  insight.stop_metrics();
  EXPECT_EQ(refused, 6) << "soon, and at the end";
}

Metrics example() {
  Metrics metrics;
  metrics.elapsed_seconds = 99.5;
  metrics.operations["allreduce"] = {.ended = 7, .failed = 2};
  metrics.operations["shared buffer"] = {.ended = 1, .failed = 0};
  metrics.bytes = {
      .shared_memory = std::uint64_t{1} << 50, .messages = 3, .gpus = 4, .packed = 5, .headers = 6};
  metrics.agree.counts[0] = 2;
  metrics.agree.counts[10] = 3;
  metrics.agree.counts[Metrics::Histogram::kBounds] = 1;
  metrics.agree.sum = 200.125;
  metrics.late_seconds = {0.0, 0.0, 1e-9, 12.5};
  metrics.data_wait_seconds = {0.25, 0.0, 0.0, 0.0};
  metrics.unknown_data_wait_seconds = 0.75;
  metrics.open_wait_seconds = {0.0, 0.0, 0.0, 22.5};
  metrics.last_step_time = 1796045733.5;
  metrics.blocked_seconds = 9.5;
  metrics.steps = 11;
  metrics.exposed_seconds = 9.25;
  metrics.stalls = 12;
  metrics.records = 13;
  return metrics;
}

TEST(MetricsTextTest, PrometheusReadsTheStruct) {
  const auto values = parse_prometheus(insight::to_prometheus(example(), 1));
  const std::map<std::string, double> expected{
      {R"(kolo_operations_total{rank="1",collective="allreduce"})", 7},
      {R"(kolo_operations_total{rank="1",collective="shared buffer"})", 1},
      {R"(kolo_failed_operations_total{rank="1",collective="allreduce"})", 2},
      {R"(kolo_failed_operations_total{rank="1",collective="shared buffer"})", 0},
      {R"(kolo_moved_bytes_total{rank="1",path="shared_memory"})", 1125899906842624.0},
      {R"(kolo_moved_bytes_total{rank="1",path="messages"})", 3},
      {R"(kolo_moved_bytes_total{rank="1",path="gpus"})", 4},
      {R"(kolo_packed_bytes_total{rank="1"})", 5},
      {R"(kolo_header_bytes_total{rank="1"})", 6},
      {R"(kolo_agree_seconds_bucket{rank="1",le="0.000001"})", 2},
      {R"(kolo_agree_seconds_bucket{rank="1",le="0.000512"})", 2},
      {R"(kolo_agree_seconds_bucket{rank="1",le="0.001024"})", 5},
      {R"(kolo_agree_seconds_bucket{rank="1",le="134.217728"})", 5},
      {R"(kolo_agree_seconds_bucket{rank="1",le="+Inf"})", 6},
      {R"(kolo_agree_seconds_sum{rank="1"})", 200.125},
      {R"(kolo_agree_seconds_count{rank="1"})", 6},
      {R"(kolo_queue_seconds_count{rank="1"})", 0},
      {R"(kolo_move_seconds_count{rank="1"})", 0},
      {R"(kolo_late_seconds_total{rank="1",peer="2"})", 1e-9},
      {R"(kolo_late_seconds_total{rank="1",peer="3"})", 12.5},
      {R"(kolo_data_wait_seconds_total{rank="1",peer="0"})", 0.25},
      {R"(kolo_data_wait_seconds_total{rank="1",peer="unknown"})", 0.75},
      {R"(kolo_open_wait_seconds{rank="1",peer="3"})", 22.5},
      {R"(kolo_open_wait_seconds{rank="1",peer="unknown"})", 0},
      {R"(kolo_last_step_timestamp_seconds{rank="1"})", 1796045733.5},
      {R"(kolo_elapsed_seconds_total{rank="1"})", 99.5},
      {R"(kolo_blocked_seconds_total{rank="1"})", 9.5},
      {R"(kolo_steps_total{rank="1"})", 11},
      {R"(kolo_step_exposed_seconds_total{rank="1"})", 9.25},
      {R"(kolo_stalls_total{rank="1"})", 12},
      {R"(kolo_records_total{rank="1"})", 13},
  };
  for (const auto& [series, value] : expected) {
    const auto found = values.find(series);
    ASSERT_NE(found, values.end()) << series;
    EXPECT_EQ(found->second, value) << series;
  }
  EXPECT_FALSE(values.contains(R"(kolo_late_seconds_total{rank="1",peer="0"})"));
  // The rest are the other buckets, and the sums and 29 buckets of two histograms more.
  EXPECT_EQ(values.size(), expected.size() + 24 + 2 * 30);
}

TEST(MetricsTextTest, JsonHasTheSameValues) {
  const auto json = nlohmann::json::parse(to_json(example()));
  EXPECT_EQ(json.at("kolo_operations_total").at("allreduce"), 7);
  EXPECT_EQ(json.at("kolo_moved_bytes_total").at("shared_memory").get<std::uint64_t>(),
            std::uint64_t{1} << 50);
  EXPECT_EQ(json.at("kolo_late_seconds_total"), nlohmann::json({{"2", 1e-9}, {"3", 12.5}}));
  EXPECT_EQ(json.at("kolo_steps_total"), 11);
  const auto& agree = json.at("kolo_agree_seconds");
  EXPECT_EQ(agree.at("count"), 6);
  EXPECT_EQ(agree.at("sum"), 200.125);
  EXPECT_EQ(agree.at("buckets").size(), Metrics::Histogram::kBounds + 1);
  EXPECT_EQ(agree.at("buckets").at("0.001024"), 5);
  EXPECT_EQ(agree.at("buckets").at("+Inf"), 6);
}

TEST(MetricsTextTest, LabelsOfTheJob) {
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}) ::unsetenv(variable);
  EXPECT_EQ(insight::labels_of(812, ""), R"(,job_id="812")");
  EXPECT_EQ(insight::labels_of(812, "team=vision,note=a b"),
            R"(,job_id="812",team="vision",note="a b")");
  EXPECT_EQ(insight::labels_of(812, "job_id=mine"), R"(,job_id="mine")");
  ::setenv("SLURM_JOB_ID", "4711", 1);
  EXPECT_EQ(insight::labels_of(812, "run=42"), R"(,job_id="4711",run="42")");
  ::setenv("SLURM_JOB_ID", "47\"11", 1);
  EXPECT_EQ(insight::labels_of(812, ""), R"(,job_id="812")");
  ::unsetenv("SLURM_JOB_ID");
  const auto values = parse_prometheus(insight::to_prometheus(example(), 1, R"(,job_id="812")"));
  EXPECT_TRUE(values.contains(R"(kolo_steps_total{rank="1",job_id="812"})"));
  EXPECT_TRUE(values.contains(R"(kolo_late_seconds_total{rank="1",peer="3",job_id="812"})"));
  EXPECT_TRUE(values.contains(R"(kolo_agree_seconds_bucket{rank="1",le="+Inf",job_id="812"})"));
}

TEST(MetricsTextTest, OpenMetricsNamesFamiliesOfCountersWithoutTotal) {
  const std::string text = insight::to_prometheus(example(), 1, "", true);
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
  EXPECT_NE(text.find("# TYPE kolo_steps counter\nkolo_steps_total{rank=\"1\"} 11\n"),
            std::string::npos);
  EXPECT_NE(text.find("# TYPE kolo_agree_seconds histogram\n"), std::string::npos);
  EXPECT_NE(text.find("# TYPE kolo_open_wait_seconds gauge\n"), std::string::npos);
}

TEST(MetricsTextTest, NothingCountedYet) {
  parse_prometheus(insight::to_prometheus({}, 0));
  EXPECT_EQ(nlohmann::json::parse(to_json({})).at("kolo_operations_total"),
            nlohmann::json::object());
}

TEST(MetricsFileTest, NamesOfRanks) {
  EXPECT_EQ(insight::name_for_rank("/m/kolo-{rank}.prom", kOrigin), "/m/kolo-1.prom");
  EXPECT_EQ(insight::name_for_rank("/m/kolo", kOrigin), "/m/kolo.1");
  EXPECT_EQ(insight::name_for_rank("/m/kolo", {.rank = 0, .size = 1}), "/m/kolo");
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(MetricsFileTest, ReadersSeeWholeTextsAndTheLastOne) {
  const std::string path = testing::TempDir() + "kolo-metrics-" + std::to_string(::getpid());
  std::atomic<int> texts{0};
  std::string last;
  {
    const insight::MetricsFile file(
        path,
        [&] {
          last = std::to_string(++texts) + std::string(100'000, 'x') + "\n";
          return last;
        },
        1ms);
    int seen = 0;
    while (seen < 20) {
      const std::string text = contents(path);
      if (text.empty()) {  // the first has not been written yet
        EXPECT_EQ(seen, 0);
        continue;
      }
      EXPECT_TRUE(text.ends_with("x\n"));
      const int number = std::stoi(text);
      EXPECT_GE(number, seen);
      seen = number;
    }
  }
  EXPECT_EQ(contents(path), last);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  std::filesystem::remove(path);
}

TEST(MetricsFileTest, IsWrittenAtAnErrorAndRemovedAtAnOrderlyEnd) {
  const std::string name = testing::TempDir() + "kolo-metrics-end-" + std::to_string(::getpid());
  const std::string path = name + ".1";
  const auto wait_for_file = [&] {
    while (!std::filesystem::exists(path)) std::this_thread::yield();
  };
  Insight orderly(kOrigin, "");
  orderly.start_to_export(name, 0, "");
  wait_for_file();
  orderly.stop();
  EXPECT_FALSE(std::filesystem::exists(path)) << "a scraper would read it for ever";
  Insight failing(kOrigin, "");
  failing.start_to_export(name, 0, "");
  wait_for_file();
  failing.take_meter().count_stall();
  failing.note({{ErrorKind::Timeout, "on purpose"}, -1, {}});
  EXPECT_NE(contents(path).find("kolo_stalls_total{rank=\"1\"} 1\n"), std::string::npos)
      << "not only after the interval";
  failing.stop();
  EXPECT_TRUE(std::filesystem::exists(path)) << "what led to the end";
  std::filesystem::remove(path);
}

/// What a server on this host answers.
std::string ask(int port, const std::string& request) {
  const comm::FileDescriptor peer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(peer.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return {};
  ::send(peer.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  std::array<char, 4096> part{};
  for (;;) {
    const auto count = ::recv(peer.get(), part.data(), part.size(), 0);
    if (count <= 0) return answer;
    answer.append(part.data(), static_cast<std::size_t>(count));
  }
}

TEST(MetricsServerTest, AnswersAsScrapersExpect) {
  const int port = 20000 + static_cast<int>(::getpid() % 20000);  // of local rank 0
  const std::string address = ":" + std::to_string(port);
  const auto text = [](bool is_open_metrics) {
    return is_open_metrics ? std::string("open") : std::string(1 << 20, 'x');
  };
  const insight::MetricsServer server(address, 1, text);
  const std::string whole = ask(port + 1, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(whole.starts_with("HTTP/1.1 200 OK\r\n")) << whole.substr(0, 100);
  EXPECT_NE(whole.find("Content-Length: 1048576\r\n"), std::string::npos);
  EXPECT_NE(whole.find("text/plain; version=0.0.4"), std::string::npos);
  EXPECT_TRUE(whole.ends_with("\r\n\r\n" + text(false)));
  const std::string open =
      ask(port + 1,
          "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n");
  EXPECT_NE(open.find("Content-Type: application/openmetrics-text; version=1.0.0"),
            std::string::npos);
  EXPECT_TRUE(open.ends_with("\r\n\r\nopen"));
  EXPECT_TRUE(ask(port + 1, "HEAD /metrics HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
  EXPECT_TRUE(ask(port + 1, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(ask(port + 1, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  EXPECT_EQ(ask(port + 1, "GET /metrics" + std::string(1 << 16, 'x')).find("200"),
            std::string::npos);
  testing::internal::CaptureStderr();
  {
    const insight::MetricsServer second(address, 1, text);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("cannot listen on port " + std::to_string(port + 1)), std::string::npos)
      << log;
  EXPECT_FALSE(insight::MetricsServer::is_address("/tmp/a:9400"));
  EXPECT_FALSE(insight::MetricsServer::is_address("kolo-{rank}.prom"));
  EXPECT_FALSE(insight::MetricsServer::is_address(":0"));
  EXPECT_TRUE(insight::MetricsServer::is_address(":99999")) << "a mistake, and no file";
  EXPECT_TRUE(insight::MetricsServer::is_address("[::]:9400"));
}

TEST(MetricsFileTest, FilesThatCannotBeWrittenAreOneWarning) {
  testing::internal::CaptureStderr();
  std::atomic<int> texts{0};
  {
    const insight::MetricsFile file(
        "/proc/none/kolo", [&] { return std::to_string(++texts); }, 1ms);
    while (texts < 5) std::this_thread::yield();
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const std::size_t warning = log.find("cannot write /proc/none/kolo: No such file");
  ASSERT_NE(warning, std::string::npos) << log;
  EXPECT_EQ(log.find("cannot write", warning + 1), std::string::npos) << log;
}

}  // namespace kolo::test::metrics_test
