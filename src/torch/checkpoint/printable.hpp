#pragma once

#include <string>
#include <string_view>

namespace kolo::tensors {

/// `text` as a terminal and a log can take it, where it has names out of a file that anybody may
/// have written: bytes that are no UTF-8, and control characters other than ends of lines, become
/// \x1b.
std::string printable(std::string_view text);

}  // namespace kolo::tensors
