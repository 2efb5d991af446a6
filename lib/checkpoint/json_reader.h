// JSON from untrusted text as a stream of events: nothing is built on our side that a reader does not keep itself,
// every key is seen (duplicates included), nesting is bounded and never recurses. What is wrong with the text is thrown
// as DS41_STATUS_INVALID_FILE; what is wrong with its meaning is thrown by the reader's events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ds41 {

struct JsonNumber {
    bool is_integer = false; // Written without fraction and exponent, and within int64.
    int64_t integer = 0;     // Only if is_integer.
    double real = 0;         // Always.
};

std::string number_text(const JsonNumber &number);

// Strings are valid UTF-8, may hold NULs, and may be moved from.
class JsonEvents {
public:
    virtual void begin_object() = 0;
    virtual void end_object() = 0;
    virtual void begin_list() = 0;
    virtual void end_list() = 0;
    virtual void key(std::string &text) = 0;
    virtual void string(std::string &text) = 0;
    virtual void number(const JsonNumber &number) = 0;
    virtual void boolean(bool value) = 0;
    virtual void null() = 0;

protected:
    ~JsonEvents() = default;
};

// `what` begins the sentences: "the header is not valid JSON at byte 12".
void read_json(std::string_view text, const char *what, int max_depth, JsonEvents &events);

} // namespace ds41
