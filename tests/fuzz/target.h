// What the fuzz targets share. A target feeds one input to one reader of foreign bytes, swallows its refusals, reads
// whatever it lends, and aborts where a promise of the reader's header is broken. libFuzzer runs it in a build with
// -Dfuzz=enabled; replay.cc runs the files that are checked in, in every build.
#pragma once

#include "error.h"
#include "support/allocation_meter.h"

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);

namespace ds41::fuzz {

// Not an assertion of <cassert>: release builds replay too.
inline void require(bool promise, const char *text) {
    if (promise) return;
    std::fprintf(stderr, "broken promise: %s\n", text);
    std::abort();
}

// A refusal says something, in a sentence of one line.
inline void check_error(const Error &error) {
    require(error.status() != DS41_STATUS_OK && error.status() != DS41_STATUS_INTERNAL, "an error has a status");
    require(std::strlen(error.what()) > 10, "an error has a sentence");
    for (const char *c = error.what(); *c; ++c)
        require(static_cast<unsigned char>(*c) >= 0x20 && *c != 0x7F, "a sentence holds no control characters");
}

// Runs `parse` and tells whether it was content. All that it allocates, freed meanwhile or not, stays below
// per_byte * size + constant: no count or length in the input makes room for more than the input could hold.
template <class Parse> bool parses(std::size_t size, std::uint64_t per_byte, std::uint64_t constant, Parse &&parse) {
    bool content = true;
    test::AllocationMeter meter;
    try {
        parse();
    } catch (const Error &error) {
        content = false;
        check_error(error);
    }
    const std::uint64_t n_bytes = meter.n_bytes(), limit = per_byte * size + constant;
    if (n_bytes > limit)
        std::fprintf(stderr, "%" PRIu64 " bytes allocated for %zu bytes of input, limit %" PRIu64 "\n", n_bytes, size,
                     limit);
    require(n_bytes <= limit, "the input's size justifies what is allocated");
    return content;
}

// A call that may refuse.
template <class Call> void attempt(Call &&call) {
    try {
        call();
    } catch (const Error &error) {
        check_error(error);
    }
}

} // namespace ds41::fuzz
