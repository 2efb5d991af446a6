// Foreign text inside our sentences: names and paths from files and callers, made short and printable so that the part
// of the message that matters is not cut off. Used in messages only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ds41 {

// In double quotes, control characters and marks of direction as '?', cut after 96 bytes between two UTF-8 characters.
std::string quoted(std::string_view text);

// The last 160 bytes: a path tells most at its end.
std::string shortened_path(std::string_view path);

// "[2, 3]"; long lists are cut.
std::string shape_text(std::span<const int64_t> shape);

} // namespace ds41
