// What reaches a terminal: foreign names without their power, bytes in units.
#include "text.h"

#include <doctest/doctest.h>

#include <string>

using namespace inspect;

TEST_CASE("text that is harmless stays as it is") {
    for (const std::string text :
         {"", "layers.0.attn.wq_a.weight", "a \"b\" \\ c", "Gr\u00f6\u00dfe \u6ce8 \U0001f600"})
        CHECK(printable(text) == text);
}

TEST_CASE("what a terminal obeys or a reader misses is escaped") {
    struct Case {
        std::string text, shown;
    };
    const Case cases[] = {
        {"\x1b[2J", "\\x1b[2J"},             // an escape sequence
        {"a\nb\tc\r", "a\\x0ab\\x09c\\x0d"}, // lines
        {std::string("a\0b", 3), "a\\x00b"},
        {"\x7f", "\\x7f"},
        {"\u009b31m", "\\u{9b}31m"},  // the same escape sequence in one character
        {"a\u202eb", "a\\u{202e}b"},  // right to left
        {"a\u2066b", "a\\u{2066}b"},  // an isolate
        {"a\u2028b", "a\\u{2028}b"},  // a line separator
        {"a\u200bb", "a\\u{200b}b"},  // without width
        {"\ufeff", "\\u{feff}"},      // a byte order mark
        {"\U000e0041", "\\u{e0041}"}, // a tag
        {"\xff\xfe", "\\xff\\xfe"},   // no UTF-8
        {"\x9b", "\\x9b"},            // no UTF-8, and a control character to old terminals
        {"\xc3", "\\xc3"},            // cut
        {"\xe2\x82", "\\xe2\\x82"},   // cut later
        {"\xc3(", "\\xc3("},          // the second byte is none
        {"\xc0\xaf", "\\xc0\\xaf"},   // longer than it must be
        {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},          // half of a pair
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, // beyond the last character
    };
    for (const Case &one : cases) {
        CAPTURE(one.shown);
        CHECK(printable(one.text) == one.shown);
    }
}

TEST_CASE("bytes have the unit that keeps them short") {
    struct Case {
        uint64_t n_bytes;
        const char *shown;
    };
    const Case cases[] = {
        {0, "0 B"},
        {999, "999 B"},
        {1000, "1.00 kB"},
        {9994, "9.99 kB"},
        {9995, "10.0 kB"},
        {126720000, "126.7 MB"},
        {999949, "999.9 kB"},
        {999950, "1.00 MB"}, // never "1000.0 kB"
        {999950000, "1.00 GB"},
        {5069000000, "5.07 GB"},
        {UINT64_MAX, "18.4 EB"},
    };
    for (const Case &one : cases) {
        CAPTURE(one.n_bytes);
        CHECK(human_bytes(one.n_bytes) == one.shown);
    }
}

TEST_CASE("one thing is no plural") {
    CHECK(counted(1, "layer") == "1 layer");
    CHECK(counted(0, "layer") == "0 layers");
    CHECK(counted(2, "layer") == "2 layers");
}
