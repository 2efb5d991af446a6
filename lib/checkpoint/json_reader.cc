// The one file that knows the JSON library. Its push interface keeps its own stack on the heap, one bit per level.
#include "checkpoint/json_reader.h"

#include "error.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>

namespace ds41 {

namespace {

constexpr int kNumberTooLarge = 406; // nlohmann's out_of_range id for a number that no double holds.

class Forward final : public nlohmann::json_sax<nlohmann::json> {
public:
    Forward(const char *what, int max_depth, JsonEvents &events)
        : what_(what), max_depth_(max_depth), events_(events) {}

    bool null() override {
        events_.null();
        return true;
    }

    bool boolean(bool value) override {
        events_.boolean(value);
        return true;
    }

    bool number_integer(number_integer_t value) override {
        events_.number({true, value, static_cast<double>(value)});
        return true;
    }

    bool number_unsigned(number_unsigned_t value) override {
        const bool fits = value <= static_cast<number_unsigned_t>(INT64_MAX);
        events_.number({fits, fits ? static_cast<int64_t>(value) : 0, static_cast<double>(value)});
        return true;
    }

    bool number_float(number_float_t value, const string_t &) override {
        events_.number({false, 0, value});
        return true;
    }

    bool string(string_t &text) override {
        events_.string(text);
        return true;
    }

    bool binary(binary_t &) override { return false; } // JSON text has none.

    bool start_object(std::size_t) override {
        enter();
        events_.begin_object();
        return true;
    }

    bool key(string_t &text) override {
        events_.key(text);
        return true;
    }

    bool end_object() override {
        --depth_;
        events_.end_object();
        return true;
    }

    bool start_array(std::size_t) override {
        enter();
        events_.begin_list();
        return true;
    }

    bool end_array() override {
        --depth_;
        events_.end_list();
        return true;
    }

    // The library's own sentence quotes raw bytes of the text, so it is not passed on.
    bool parse_error(std::size_t position, const std::string &, const nlohmann::json::exception &error) override {
        throw Error(DS41_STATUS_INVALID_FILE, "%s %s at byte %zu", what_,
                    error.id == kNumberTooLarge ? "holds a number beyond the range of a double" : "is not valid JSON",
                    position);
    }

private:
    void enter() {
        DS41_CHECK(depth_ < max_depth_, DS41_STATUS_INVALID_FILE, "%s nests deeper than %d levels", what_, max_depth_);
        ++depth_;
    }

    const char *what_;
    int max_depth_;
    int depth_ = 0;
    JsonEvents &events_;
};

// The text's bytes, with every space between tokens a plain one. The library collects what it has skipped since the
// last string or number for the sentence of an error, a line's end in eight bytes and some ten copies: a hostile file
// of line ends would have it allocate a hundred times the file's size.
class PlainSpaces {
public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char *;
    using reference = char;

    explicit PlainSpaces(const char *at) : at_(at) {}

    char operator*() const {
        const bool space = *at_ == '\n' || *at_ == '\r' || *at_ == '\t';
        return space && !in_string_ ? ' ' : *at_;
    }
    PlainSpaces &operator++() {
        if (escaped_) {
            escaped_ = false;
        } else if (*at_ == '"') {
            in_string_ = !in_string_;
        } else {
            escaped_ = in_string_ && *at_ == '\\';
        }
        ++at_;
        return *this;
    }
    bool operator==(const PlainSpaces &other) const { return at_ == other.at_; }

private:
    const char *at_;
    bool in_string_ = false, escaped_ = false;
};

} // namespace

std::string number_text(const JsonNumber &number) {
    if (number.is_integer) return std::to_string(number.integer);
    char text[40];
    const bool whole = std::trunc(number.real) == number.real && std::fabs(number.real) < 1e20;
    std::snprintf(text, sizeof text, whole ? "%.0f" : "%.9g", number.real);
    return text;
}

void read_json(std::string_view text, const char *what, int max_depth, JsonEvents &events) {
    // The library takes a NUL for the end of the text and would not see what follows.
    const size_t nul = text.find('\0');
    DS41_CHECK(nul == std::string_view::npos, DS41_STATUS_INVALID_FILE, "%s is not valid JSON: a NUL at byte %zu", what,
               nul);
    Forward forward(what, max_depth, events);
    const bool complete =
        nlohmann::json::sax_parse(PlainSpaces(text.data()), PlainSpaces(text.data() + text.size()), &forward);
    DS41_CHECK(complete, DS41_STATUS_INVALID_FILE, "%s is not valid JSON", what);
}

} // namespace ds41
