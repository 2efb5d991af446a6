// The command line.
#pragma once

#include "runner.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace replay {

struct Options {
    RunOptions run;
    bool json = false;
    bool help = false;
    bool version = false;
    std::vector<std::string> files;
};

/// The command line is wrong; the message is a sentence.
struct BadUsage : std::runtime_error {
    using std::runtime_error::runtime_error;
};

Options parse_options(int argc, char **argv);

extern const char *const kHelp;

} // namespace replay
