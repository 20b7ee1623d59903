#include "insight/timeline.hpp"

#include <chrono>
#include <exception>

#include "base/log.hpp"

namespace kolo::insight {
namespace {

// Even a rank that does nothing but small operations needs twice as long to fill a recorder. With
// 5 ms, a timeline costs 1 % of a training step where all cores compute.
constexpr std::chrono::milliseconds kPause{10};

}  // namespace

Timeline::Timeline(const Recorder& recorder, const std::string& folder)
    : recorder_(recorder), file_(folder, recorder, "timeline"), next_(recorder.count()) {
  file_.publish();
  writer_.emplace(kPause, [this](bool is_last) { return write(is_last); });
}

bool Timeline::write(bool is_last) try {
  write_new(is_last);
  if (!is_last) return true;
  for (const Recorder::Problem& problem : recorder_.problems()) file_.write(problem);
  file_.close();
  return true;
} catch (const std::exception& error) {
  KOLO_LOG(Warn) << error.what() << ". The timeline ends here.";
  return false;
}

void Timeline::write_new(bool is_last) {
  const std::uint64_t end = recorder_.count();
  if (next_ == end) return;
  if (end - next_ > Recorder::kCapacity) {
    file_.write_gap(end - next_ - Recorder::kCapacity);
    next_ = end - Recorder::kCapacity;
  }
  for (; next_ < end; ++next_) {
    const auto entry = recorder_.read(next_);
    if (entry) {
      file_.write(*entry);
    } else if (is_last || recorder_.count() - next_ >= Recorder::kCapacity) {
      file_.write_gap(1);
    } else {
      break;  // it is being written: next time
    }
  }
  file_.flush();
}

}  // namespace kolo::insight
