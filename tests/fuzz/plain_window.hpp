#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kolo/shared_window.hpp"

namespace kolo::fuzz {

/// A window whose ranks all run on this thread: segments of plain memory, initially zero.
class PlainWindow {
 public:
  PlainWindow(int size, std::size_t segment_bytes)
      : stages_(std::make_unique<SharedWindow::StageCounter[]>(static_cast<std::size_t>(size))),
        lines_per_segment_((segment_bytes + sizeof(Line) - 1) / sizeof(Line)),
        lines_(lines_per_segment_ * static_cast<std::size_t>(size)),
        segment_bytes_(segment_bytes),
        size_(static_cast<std::size_t>(size)) {}

  std::span<std::byte> segment(int rank) {
    Line& first = lines_[lines_per_segment_ * static_cast<std::size_t>(rank)];
    return {first.bytes, segment_bytes_};
  }

  /// The window of `rank`, which must not outlive this object.
  std::shared_ptr<SharedWindow> window(int rank) {
    std::vector<SharedWindow::Segment> segments;
    for (std::size_t i = 0; i < size_; ++i) {
      segments.push_back({&stages_[i], segment(static_cast<int>(i))});
    }
    return std::make_shared<SharedWindow>(rank, std::move(segments), nullptr);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64]{};
  };

  std::unique_ptr<SharedWindow::StageCounter[]> stages_;
  std::size_t lines_per_segment_;
  std::vector<Line> lines_;
  std::size_t segment_bytes_;
  std::size_t size_;
};

}  // namespace kolo::fuzz
