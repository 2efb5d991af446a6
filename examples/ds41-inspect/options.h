// The command line.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace inspect {

struct Options {
    std::string path;
    std::string backend = "auto";
    int64_t context = 0; ///< Tokens per sequence; 0: not given.
    int64_t batch = 1;
    int64_t prefill = 0;      ///< Tokens of the largest step; 0: not given.
    bool some_layers = false; ///< --layers is given.
    int32_t first_layer = 0, last_layer = 0;
    bool expand_fp8 = false;
    bool map = false;
    bool json = false;
    bool help = false;
    bool version = false;
};

/// The command line is wrong, by itself or for this checkpoint; the message is a sentence.
struct BadUsage : std::runtime_error {
    using std::runtime_error::runtime_error;
};

Options parse_options(int argc, const char *const *argv);

extern const char *const kHelp;

} // namespace inspect
