#include "checkpoint/text.h"

namespace ds41 {

namespace {

constexpr size_t kShownName = 96;
constexpr size_t kShownPath = 160;
constexpr size_t kShownDims = 8;

bool continues_character(char c) {
    return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Sequences that are no text but orders to a terminal, or that turn the text around them: C1 controls, zero-width and
// directional marks, line and paragraph separators, the byte order mark.
size_t harmful_bytes(std::string_view text) {
    const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    if (at(0) < 0x20 || at(0) == 0x7f) return 1;
    if (at(0) == 0xc2 && at(1) >= 0x80 && at(1) < 0xa0) return 2;
    if (at(0) == 0xe2 && at(1) == 0x80 && ((at(2) >= 0x8b && at(2) <= 0x8f) || (at(2) >= 0xa8 && at(2) <= 0xae)))
        return 3;
    if (at(0) == 0xe2 && at(1) == 0x81 && at(2) >= 0xa0 && at(2) <= 0xaf) return 3;
    if (at(0) == 0xef && at(1) == 0xbb && at(2) == 0xbf) return 3;
    return 0;
}

std::string printable(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const size_t n = harmful_bytes(text);
        result += n ? '?' : text[0];
        text.remove_prefix(n ? n : 1);
    }
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
    if (path.empty()) return "\"\"";
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
