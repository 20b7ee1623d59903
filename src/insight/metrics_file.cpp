#include "insight/metrics_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/log.hpp"

namespace kolo::insight {

std::string name_for_rank(std::string_view name, const Origin& origin) {
  constexpr std::string_view kPlace = "{rank}";
  const std::string rank = std::to_string(origin.rank);
  std::string path(name);
  const std::size_t place = path.find(kPlace);
  if (place != std::string::npos) return path.replace(place, kPlace.size(), rank);
  return origin.size > 1 ? path + "." + rank : path;
}

MetricsFile::MetricsFile(std::string path, std::function<std::string()> text,
                         std::chrono::milliseconds interval)
    : path_(std::move(path)),
      text_(std::move(text)),
      interval_(interval),
      thread_([this] { loop(); }) {}

MetricsFile::~MetricsFile() {
  {
    const Lock lock(lock_);
    is_stopping_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void MetricsFile::loop() {
  for (bool is_last = false; !is_last;) {
    write();
    const Lock lock(lock_);
    is_last =
        stopped_.wait_for(lock_, interval_, [&]() KOLO_REQUIRES(lock_) { return is_stopping_; });
  }
  write();
}

void MetricsFile::write() {
  const std::string temporary = path_ + ".tmp";
  std::ofstream file(temporary);
  file << text_();
  file.close();
  if (file && std::rename(temporary.c_str(), path_.c_str()) == 0) return;
  if (std::exchange(has_warned_, true)) return;
  KOLO_LOG(Warn) << "KOLO_METRICS: cannot write " << path_ << ": " << std::strerror(errno)
                 << ". The run goes on without the file. Choose one that this rank can write.";
}

}  // namespace kolo::insight
