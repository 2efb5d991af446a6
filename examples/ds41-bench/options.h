// The command line.
#pragma once

#include "harness.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

struct Options {
    std::string mode;
    std::string path; ///< "" for modes that take none.
    Limits limits;
    int threads = 1; ///< Default: one per CPU that the process may run on.
    bool json = false;
    bool help = false;
    bool version = false;

    std::string backend; ///< "": the best that runs here.
    int32_t first_layer = 0;
    int32_t n_layers = 0; ///< 0: to the end.

    std::vector<std::string> formats = {"bf16", "fp8", "q2_k"};
    std::vector<int64_t> contexts; ///< Tokens, those of the step included, or keys. Default: the mode's.
    std::vector<int32_t> rows;     ///< Sequences of the step, or tokens. Default: the mode's.
    int32_t scale = 1;             ///< Sizes are divided by it.
};

/// The command line is wrong; the message is a sentence.
struct BadUsage : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Checked against the mode: its path is there, and no option that it would not look at.
Options parse_options(int argc, const char *const *argv);

std::string help_text();

} // namespace bench
