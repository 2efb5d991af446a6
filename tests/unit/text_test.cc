// Foreign text inside our sentences, and sentences that are cut.
#include "checkpoint/text.h"
#include "error.h"

#include <doctest/doctest.h>

#include <string>

using namespace ds41;

namespace {

// Every lead byte has its continuation bytes.
bool is_whole_utf8(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const unsigned char c = static_cast<unsigned char>(text[i]);
        const std::size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 0;
        if (n == 0 || i + n > text.size()) return false;
        for (std::size_t j = 1; j < n; ++j)
            if ((static_cast<unsigned char>(text[i + j]) & 0xc0) != 0x80) return false;
        i += n;
    }
    return true;
}

} // namespace

TEST_CASE("orders to a terminal and marks of direction are shown as question marks, text is not") {
    CHECK(quoted("a\x1b[31mb\n\x7f") == "\"a?[31mb??\"");
    CHECK(quoted("a\xc2\x9b"
                 "31m") == "\"a?31m\"");
    CHECK(quoted("\xe2\x80\xaegnp\xe2\x80\xa8\xe2\x80\x8b\xe2\x81\xa6\xef\xbb\xbf") == "\"?gnp????\"");
    CHECK(quoted("\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0") ==
          "\"\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0\"");
    CHECK(shortened_path("").find('"') == 0);
}

TEST_CASE("a sentence that is cut ends with a whole character") {
    for (const char *character : {"x", "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
        for (std::size_t offset = 0; offset < 4; ++offset) {
            std::string text(offset, '-');
            while (text.size() < 5000) text += character;
            const Error error(DS41_STATUS_INTERNAL, "%s", text.c_str());
            const std::string_view what = error.what();
            CHECK(what.size() > 3900);
            CHECK(is_whole_utf8(what));
        }
    }
    // What was not cut stays, whole or not.
    char short_text[16] = "ab\xe2\x82";
    trim_cut_character(short_text, sizeof short_text);
    CHECK(std::string(short_text) == "ab\xe2\x82");
    char full[5] = {'a', 'b', '\xe2', '\x82', 0};
    trim_cut_character(full, sizeof full);
    CHECK(std::string(full) == "ab");
    char none[3] = {'\x82', '\x82', 0};
    trim_cut_character(none, sizeof none);
}
