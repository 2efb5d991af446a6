// Text for people: names from foreign files that cannot reach the terminal as commands, and bytes in units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace inspect {

/// The text with everything escaped that a terminal or a reader could take for something else: control characters (C0,
/// DEL and C1), marks that turn the direction of text or end a line, and bytes that are not UTF-8.
std::string printable(std::string_view text);

/// "126.7 MB": decimal units, three digits or more of which one or two stand behind the point. "96 B" below 1000.
std::string human_bytes(uint64_t n_bytes);

/// "1 layer", "2 layers".
std::string counted(int64_t n, const char *noun);

} // namespace inspect
