// Errors inside the library: an exception that carries a status and one sentence. It is thrown by DS41_CHECK, stops at
// lib/api, and needs no memory, so that running out of it can be reported.
#pragma once

#include "ds41/ds41.h"

#include <cstddef>
#include <exception>

namespace ds41 {

class Error : public std::exception {
public:
    // The message is cut at the buffer's end, never lost.
    [[gnu::format(printf, 3, 4)]] Error(ds41_status status, const char *format, ...) noexcept;

    const char *what() const noexcept override { return message_; }
    ds41_status status() const noexcept { return status_; }

private:
    ds41_status status_;
    char message_[4000]; // a checkpoint's problems are told all at once
};

// Takes an incomplete UTF-8 character off the end of a text that fills all of its `size` bytes, where it was cut.
void trim_cut_character(char *text, std::size_t size) noexcept;

} // namespace ds41

// Refuse the caller's input or the state that was found. The sentence names the argument, the value and the range.
#define DS41_CHECK(condition, status, ...)                                                                             \
    do {                                                                                                               \
        if (!(condition)) throw ::ds41::Error(status, __VA_ARGS__);                                                    \
    } while (0)
