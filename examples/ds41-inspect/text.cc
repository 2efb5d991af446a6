#include "text.h"

#include <cstdio>

namespace inspect {

namespace {

/// Bytes of the UTF-8 character at the front, which becomes `code`; 0 when there is none. Shortest forms only, no
/// surrogates.
size_t decode(std::string_view text, uint32_t &code) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = byte(0);
    const size_t n = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (n == 0 || n > text.size()) return 0;
    code = n == 1 ? lead : lead & (0x7Fu >> n);
    for (size_t i = 1; i < n; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
        code = code << 6 | (byte(i) & 0x3Fu);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    return code < kLeast[n] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : n;
}

bool is_harmless(uint32_t code) {
    const auto in = [&](uint32_t low, uint32_t high) { return code >= low && code <= high; };
    const bool is_control = code < 0x20 || in(0x7F, 0x9F);
    // Marks of direction, line and paragraph separators, embeddings and isolates, the byte order mark.
    const bool misleads = code == 0x061C || in(0x200B, 0x200F) || in(0x2028, 0x202E) || in(0x2060, 0x206F) ||
                          code == 0xFEFF || in(0xE0000, 0xE007F);
    return !is_control && !misleads;
}

} // namespace

std::string printable(std::string_view text) {
    std::string result;
    char escaped[16];
    while (!text.empty()) {
        uint32_t code = 0;
        size_t n = decode(text, code);
        if (n > 0 && is_harmless(code)) {
            result += text.substr(0, n);
        } else {
            if (n > 0 && code >= 0x80)
                std::snprintf(escaped, sizeof escaped, "\\u{%x}", code);
            else
                std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[0])));
            result += escaped;
            n = n > 0 ? n : 1;
        }
        text.remove_prefix(n);
    }
    return result;
}

std::string human_bytes(uint64_t n_bytes) {
    if (n_bytes < 1000) return std::to_string(n_bytes) + " B";
    constexpr const char *kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    double value = static_cast<double>(n_bytes) / 1000;
    size_t unit = 0;
    // What would be shown as 1000.0 goes to the next unit.
    while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
        value /= 1000;
        ++unit;
    }
    char text[32];
    std::snprintf(text, sizeof text, value < 9.995 ? "%.2f %s" : "%.1f %s", value, kUnits[unit]);
    return text;
}

std::string counted(int64_t n, const char *noun) {
    return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

} // namespace inspect
