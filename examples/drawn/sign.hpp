#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// Data that needs no download: pictures of seven-segment signs, as a poor camera sees a display.
namespace drawn {

enum class Alphabet { Digits, Letters };

inline constexpr int kDigits = 10;  ///< 0 … 9
inline constexpr int kLetters = 8;  ///< A b C d E F H L
inline constexpr int kSide = 28;    ///< pixels
inline constexpr std::size_t kPixels = std::size_t{kSide} * kSide;

/// Which sign of its alphabet picture `number` shows, from 0.
int sign_of(Alphabet alphabet, std::uint64_t number);

/// Draws picture `number`: place, size, slant, thickness and noise follow from the number, so that
/// every process draws the same picture. Pixels range from 0 to 1, row by row.
void draw(Alphabet alphabet, std::uint64_t number, std::span<float, kPixels> pixels);

}  // namespace drawn
