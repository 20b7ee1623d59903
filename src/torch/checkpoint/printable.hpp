#pragma once

#include <string>
#include <string_view>

namespace kolo::train {

/// Makes text with names out of an untrusted file safe for terminals and logs: bytes that are not
/// UTF-8, and control characters other than line ends, are written like \x1b.
std::string printable(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace kolo::train
