#include "checkpoint/gguf_reader.h"

#include "error.h"

#include <cinttypes>

namespace ds41 {

namespace {

// Unicode's table of well-formed sequences: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
    const auto byte = [text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    for (size_t i = 0; i < text.size();) {
        const unsigned lead = byte(i), second = byte(i + 1);
        const size_t n = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4) return false;
        if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
            (lead == 0xF4 && second > 0x8F))
            return false;
        for (size_t j = 1; j < n; ++j)
            if ((byte(i + j) & 0xC0) != 0x80) return false;
        i += n;
    }
    return true;
}

} // namespace

std::span<const std::byte> GgufReader::take(uint64_t n, const char *what) {
    DS41_CHECK(n <= n_left(), DS41_STATUS_INVALID_FILE,
               "%s takes %" PRIu64 " bytes from byte %" PRIu64 ", but the file ends at byte %zu", what, n, position_,
               bytes_.size());
    const std::span<const std::byte> taken = bytes_.subspan(static_cast<size_t>(position_), static_cast<size_t>(n));
    position_ += n;
    return taken;
}

std::string_view GgufReader::name(const char *what) {
    const uint64_t begin = position_;
    const uint64_t length = u64(what);
    DS41_CHECK(length >= 1 && length <= kMaxName, DS41_STATUS_INVALID_FILE,
               "%s at byte %" PRIu64 " has %" PRIu64 " bytes, need a length in [1, %" PRIu64 "]", what, begin, length,
               kMaxName);
    const std::span<const std::byte> taken = take(length, what);
    const std::string_view text(reinterpret_cast<const char *>(taken.data()), taken.size());
    DS41_CHECK(text.find('\0') == std::string_view::npos, DS41_STATUS_INVALID_FILE,
               "%s at byte %" PRIu64 " holds a NUL", what, begin);
    DS41_CHECK(is_utf8(text), DS41_STATUS_INVALID_FILE, "%s at byte %" PRIu64 " is not UTF-8", what, begin);
    return text;
}

uint64_t GgufReader::count(uint64_t min_bytes, const char *what) {
    const uint64_t begin = position_;
    const uint64_t n = u64(what);
    DS41_CHECK(n <= n_left() / min_bytes, DS41_STATUS_INVALID_FILE,
               "%s at byte %" PRIu64 " is %" PRIu64 ", need at most %" PRIu64 ": %" PRIu64
               " bytes follow, and each takes %" PRIu64 " or more",
               what, begin, n, n_left() / min_bytes, n_left(), min_bytes);
    return n;
}

uint64_t GgufReader::decode(std::span<const std::byte> bytes) noexcept {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    return value;
}

} // namespace ds41
