// Replays one case in one arithmetic mode and compares each step's results.
#pragma once

#include "case.h"
#include "compare.h"

#include <string>
#include <vector>

namespace replay {

struct RunOptions {
    std::string backend; ///< Empty: the library's choice.
    std::string topk;    ///< stable or torch_cpu; empty: what the case says.
    int64_t chunk = 0;   ///< Tokens per chunk of a prefill; 0: whole.
    int32_t threads = 0; ///< ds41_ctx_options.n_threads.
    std::string weights; ///< A checkpoint to take them from; empty: the case's own.
    bool map = false;    ///< Leave them in the checkpoint's files.
};

struct Record {
    size_t step;
    int64_t start_pos;
    int32_t layer;
    std::string tensor; ///< With the mode's prefix.
    Comparison result;
};

struct ModeResult {
    std::string backend; ///< That ran.
    std::string topk;
    uint64_t fingerprint; ///< Of the bits of everything compared: equal where two runs gave the same.
    std::vector<Record> records;
};

/// Throws CannotRun when the library reports an error.
ModeResult run_mode(const Fixture &fixture, const Case &replayed, size_t mode, const RunOptions &options);

} // namespace replay
