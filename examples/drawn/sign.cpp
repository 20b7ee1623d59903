#include "drawn/sign.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace drawn {
namespace {

/// SplitMix64: the same numbers with every standard library, and good ones after any seed.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t state_;
};

struct Point {
  double x;
  double y;
};

struct Segment {
  Point begin;
  Point end;
};

/// Clockwise from the top, then the middle one; y grows downwards.
constexpr std::array<Segment, 7> kSegments{{{{-0.5, -1}, {0.5, -1}},
                                            {{0.5, -1}, {0.5, 0}},
                                            {{0.5, 0}, {0.5, 1}},
                                            {{-0.5, 1}, {0.5, 1}},
                                            {{-0.5, 0}, {-0.5, 1}},
                                            {{-0.5, -1}, {-0.5, 0}},
                                            {{-0.5, 0}, {0.5, 0}}}};

/// Bit i is set where segment i is lit.
constexpr std::array<unsigned, kDigits> kLitInDigits{0x3f, 0x06, 0x5b, 0x4f, 0x66,
                                                     0x6d, 0x7d, 0x07, 0x7f, 0x6f};
constexpr std::array<unsigned, kLetters> kLitInLetters{0x77, 0x7c, 0x39, 0x5e,
                                                       0x79, 0x71, 0x76, 0x38};

std::span<const unsigned> lit_segments(Alphabet alphabet) {
  if (alphabet == Alphabet::Digits) return kLitInDigits;
  return kLitInLetters;
}

double distance(Point point, const Segment& segment) {
  const double dx = segment.end.x - segment.begin.x;
  const double dy = segment.end.y - segment.begin.y;
  const double along =
      ((point.x - segment.begin.x) * dx + (point.y - segment.begin.y) * dy) / (dx * dx + dy * dy);
  const double nearest = std::clamp(along, 0.0, 1.0);
  return std::hypot(point.x - segment.begin.x - nearest * dx,
                    point.y - segment.begin.y - nearest * dy);
}

double distance_to_sign(Point point, unsigned lit) {
  double least = 10;
  for (std::size_t i = 0; i < kSegments.size(); ++i) {
    if ((lit >> i & 1U) != 0) least = std::min(least, distance(point, kSegments[i]));
  }
  return least;
}

}  // namespace

int sign_of(Alphabet alphabet, std::uint64_t number) {
  return static_cast<int>(SplitMix64(number).next() % lit_segments(alphabet).size());
}

void draw(Alphabet alphabet, std::uint64_t number, std::span<float, kPixels> pixels) {
  SplitMix64 random(number);
  const std::span<const unsigned> lit_in_signs = lit_segments(alphabet);
  const unsigned lit = lit_in_signs[random.next() % lit_in_signs.size()];
  const Point center{random.between(11, 17), random.between(12, 16)};
  const double scale = random.between(7, 10);  // pixels of one length of a segment
  const double slant = random.between(-0.3, 0.3);
  const double half_width = random.between(0.08, 0.2);
  const double noise = random.between(0.1, 0.4);
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      const double y = (row - center.y) / scale;
      const double x = (column - center.x) / scale + slant * y;
      const double edge = (distance_to_sign({x, y}, lit) - half_width) * scale;  // pixels
      const double value = std::clamp(0.8 - edge, 0.0, 0.8) + random.between(-noise, noise);
      pixels[static_cast<std::size_t>(row) * kSide + static_cast<std::size_t>(column)] =
          static_cast<float>(std::clamp(value, 0.0, 1.0));
    }
  }
}

}  // namespace drawn
