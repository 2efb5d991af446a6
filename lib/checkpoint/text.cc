#include "checkpoint/text.h"

namespace ds41 {

namespace {

constexpr size_t kShownName = 96;
constexpr size_t kShownPath = 160;
constexpr size_t kShownDims = 8;

bool continues_character(char c) {
    return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

std::string printable(std::string_view text) {
    std::string result(text);
    for (char &c : result)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
    return result;
}

} // namespace

std::string quoted(std::string_view text) {
    size_t n = text.size();
    if (n > kShownName) {
        n = kShownName;
        while (n > 0 && continues_character(text[n])) --n;
    }
    return "\"" + printable(text.substr(0, n)) + (n < text.size() ? "...\"" : "\"");
}

std::string shortened_path(std::string_view path) {
    if (path.size() <= kShownPath) return printable(path);
    size_t first = path.size() - kShownPath;
    while (first < path.size() && continues_character(path[first])) ++first;
    return "..." + printable(path.substr(first));
}

std::string shape_text(std::span<const int64_t> shape) {
    std::string result = "[";
    for (size_t i = 0; i < shape.size() && i < kShownDims; ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
    return result + (shape.size() > kShownDims ? ", ...]" : "]");
}

} // namespace ds41
