#include <array>
#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/text.hpp"
#include "kolo/dtype.hpp"
#include "kolo/error.hpp"
#include "kolo/reduction.hpp"
#include "kolo/tensor_view.hpp"

namespace kolo::base_test {

using namespace std::chrono_literals;

TEST(DTypeTest, EveryType_HasItsNameAndSize) {
  struct Row {
    DType dtype;
    const char* name;
    std::size_t size;
    bool is_floating;
  };
  constexpr std::array kRows{Row{DType::UInt8, "uint8", 1, false},
                             Row{DType::Int8, "int8", 1, false},
                             Row{DType::Int16, "int16", 2, false},
                             Row{DType::Int32, "int32", 4, false},
                             Row{DType::Int64, "int64", 8, false},
                             Row{DType::Float16, "float16", 2, true},
                             Row{DType::BFloat16, "bfloat16", 2, true},
                             Row{DType::Float32, "float32", 4, true},
                             Row{DType::Float64, "float64", 8, true},
                             Row{DType::Bool, "bool", 1, false},
                             Row{DType::Complex64, "complex64", 8, false},
                             Row{DType::Complex128, "complex128", 16, false}};
  static_assert(kRows.size() == kDTypeCount);
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    const Row& row = kRows[i];
    EXPECT_EQ(static_cast<std::size_t>(row.dtype), i) << "the numbers travel in messages";
    EXPECT_EQ(name_of(row.dtype), row.name);
    EXPECT_EQ(size_of(row.dtype), row.size) << row.name;
    EXPECT_EQ(is_floating(row.dtype), row.is_floating) << row.name;
    EXPECT_EQ(is_half(row.dtype), row.is_floating && row.size == 2) << row.name;
    EXPECT_EQ(is_complex(row.dtype), std::string_view(row.name).starts_with("complex")) << row.name;
    const bool is_int = std::string_view(row.name).find("int") != std::string_view::npos;
    EXPECT_EQ(is_integer(row.dtype), is_int) << row.name;
    EXPECT_EQ(parts_of(row.dtype) * size_of(real_type(row.dtype)), row.size) << row.name;
  }
}

TEST(TensorViewTest, Count_IsTheProductOfTheShape) {
  EXPECT_EQ((TensorView{.shape = {}}).count(), 1u);
  EXPECT_EQ((TensorView{.shape = {3, 5, 7}}).count(), 105u);
  EXPECT_EQ((TensorView{.shape = {3, 0, 7}}).count(), 0u);
  EXPECT_EQ((TensorView{.dtype = DType::Float64, .shape = {3, 5}}).size_bytes(), 120u);
}

template <class Expected>
void expect_thrown(ErrorKind kind, const std::string& name) {
  EXPECT_EQ(name_of(kind), name);
  try {
    std::rethrow_exception(to_exception({kind, "rank 2: text"}));
  } catch (const Expected& error) {
    EXPECT_STREQ(error.what(), "rank 2: text");
    return;
  } catch (...) {
  }
  ADD_FAILURE() << name << " becomes another exception";
}

TEST(ErrorTest, Failure_BecomesTheExceptionOfItsKind) {
  expect_thrown<InvalidArgument>(ErrorKind::InvalidArgument, "InvalidArgument");
  expect_thrown<MismatchError>(ErrorKind::Mismatch, "MismatchError");
  expect_thrown<TimeoutError>(ErrorKind::Timeout, "TimeoutError");
  expect_thrown<PeerLostError>(ErrorKind::PeerLost, "PeerLostError");
  expect_thrown<ShutdownError>(ErrorKind::Shutdown, "ShutdownError");
  expect_thrown<BackendError>(ErrorKind::Backend, "BackendError");
}

TEST(DeadlineTest, Deadline_PassesAtItsTime) {
  EXPECT_TRUE(Deadline::after(0ns).has_passed());
  EXPECT_FALSE(Deadline::after(1h).has_passed());
  EXPECT_TRUE(Deadline::at(Deadline::Clock::now() - 1ns).has_passed());
  EXPECT_FALSE(Deadline::never().has_passed());
}

TEST(DeadlineTest, LongDurations_DoNotWrapAround) {
  EXPECT_FALSE(Deadline::after(std::chrono::nanoseconds::max()).has_passed());
  EXPECT_EQ(Deadline::after(std::chrono::nanoseconds::max()).point(), Deadline::never().point());
  constexpr auto kLast = Deadline::Clock::time_point::max();
  EXPECT_EQ(later(kLast - 5ns, 6ns), kLast);
  EXPECT_EQ(later(kLast - 5ns, 4ns), kLast - 1ns);
  EXPECT_EQ(later(kLast, 0ns), kLast);
  EXPECT_EQ(later(std::chrono::nanoseconds::max() - 5ns, 1h), std::chrono::nanoseconds::max());
  EXPECT_EQ(later(5ns, -1ns), 4ns);
}

class LogTest : public testing::Test {
 protected:
  void TearDown() override {
    set_log_level(LogLevel::Warn);
    set_log_rank(-1);
  }
};

TEST_F(LogTest, Line_CarriesRankLevelAndText) {
  set_log_rank(3);
  testing::internal::CaptureStderr();
  KOLO_LOG(Warn) << "tensor " << 17 << " waits";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[kolo rank 3] warn: tensor 17 waits\n");
}

TEST_F(LogTest, LineWithoutARank_NamesNone) {
  testing::internal::CaptureStderr();
  KOLO_LOG(Error) << "text";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[kolo] error: text\n");
}

TEST_F(LogTest, BelowTheLevel_NothingIsComputed) {
  int computed = 0;
  const auto compute = [&] { return ++computed; };
  testing::internal::CaptureStderr();
  KOLO_LOG(Info) << compute();
  set_log_level(LogLevel::Error);
  KOLO_LOG(Warn) << compute();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(computed, 0);
  set_log_level(LogLevel::Debug);
  testing::internal::CaptureStderr();
  KOLO_LOG(Debug) << compute();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[kolo] debug: 1\n");
}

TEST_F(LogTest, EveryLevel_ShowsTheMoreSevereOnes) {
  const struct {
    const char* name;
    LogLevel level;
  } levels[] = {{"error", LogLevel::Error},
                {"warn", LogLevel::Warn},
                {"info", LogLevel::Info},
                {"debug", LogLevel::Debug}};
  std::string expected;
  for (const auto& [name, level] : levels) {
    EXPECT_EQ(parse_log_level(name), level) << name;
    expected += std::string("[kolo] ") + name + ": text\n";
    set_log_level(level);
    testing::internal::CaptureStderr();
    KOLO_LOG(Error) << "text";
    KOLO_LOG(Warn) << "text";
    KOLO_LOG(Info) << "text";
    KOLO_LOG(Debug) << "text";
    EXPECT_EQ(testing::internal::GetCapturedStderr(), expected) << name;
  }
}

TEST_F(LogTest, LogStatement_MayPrecedeAnElse) {
  testing::internal::CaptureStderr();
  bool is_elsewhere = false;
  if (is_logged(LogLevel::Debug))
    KOLO_LOG(Debug) << "never";
  else
    is_elsewhere = true;
  EXPECT_TRUE(is_elsewhere);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(MutexTest, KnowsWhichThreadHoldsIt) {
  Mutex mutex;
  const auto is_another_threads = [&] {
    return std::async(std::launch::async, [&] { return mutex.is_mine(); }).get();
  };
  EXPECT_FALSE(mutex.is_mine());
  {
    const Lock lock(mutex);
    EXPECT_TRUE(mutex.is_mine());
    EXPECT_FALSE(is_another_threads());
    EXPECT_FALSE(std::async(std::launch::async, [&] {
                   const bool is_locked = mutex.try_lock();
                   if (is_locked) mutex.unlock();
                   return is_locked;
                 }).get());
    EXPECT_TRUE(mutex.is_mine()) << "a try that fails changes nothing";
  }
  EXPECT_FALSE(mutex.is_mine());
  if (mutex.try_lock()) {
    const Lock lock(mutex, std::adopt_lock);
    EXPECT_TRUE(mutex.is_mine());
  } else {
    ADD_FAILURE() << "nobody holds it";
  }
  EXPECT_FALSE(mutex.is_mine());
  EXPECT_FALSE(is_another_threads());
}

TEST(IntentionalLeakTest, LeakedObject_StaysAlive) {
  struct Counted {
    explicit Counted(int& n) : destroyed(&n) {}
    Counted(Counted&& other) noexcept : destroyed(other.destroyed) { other.destroyed = nullptr; }
    ~Counted() {
      if (destroyed != nullptr) ++*destroyed;
    }
    int* destroyed;
  };
  int destroyed = 0;
  leak_intentionally(Counted(destroyed));
  leak_intentionally(Counted(destroyed));
  EXPECT_EQ(destroyed, 0);
}

TEST(RankListTest, FormatsRanksAsAPhrase) {
  EXPECT_EQ(list_ranks(std::array{3}), "rank 3");
  EXPECT_EQ(list_ranks(std::array{0, 2}), "ranks 0 and 2");
  EXPECT_EQ(list_ranks(std::array{0, 2, 5}), "ranks 0, 2 and 5");
}

}  // namespace kolo::base_test
