// Formats the sentence of an error in place.
#include "error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace ds41 {

Error::Error(ds41_status status, const char *format, ...) noexcept : status_(status) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message_, sizeof message_, format, arguments);
    va_end(arguments);
    trim_cut_character(message_, sizeof message_);
}

void trim_cut_character(char *text, std::size_t size) noexcept {
    std::size_t n = std::strlen(text);
    if (n + 1 < size) return; // it was not cut
    std::size_t first = n;
    while (first > 0 && (static_cast<unsigned char>(text[first - 1]) & 0xc0) == 0x80) --first;
    if (first == 0) return;
    const unsigned char lead = static_cast<unsigned char>(text[first - 1]);
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (n - (first - 1) < length) text[first - 1] = '\0';
}

} // namespace ds41
