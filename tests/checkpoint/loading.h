// What the checkpoint tests share: loading through the public header, and the outputs of a loaded model's layers on
// fixed inputs, by which two models are told apart. Trusts the library for nothing but its statuses.
#pragma once

#include "ds41/ds41.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace checkpoint_test {

template <auto destroy> struct Destroy {
    template <typename T> void operator()(T *object) const { destroy(object); }
};
using Model = std::unique_ptr<ds41_model, Destroy<ds41_model_destroy>>;
using Ctx = std::unique_ptr<ds41_ctx, Destroy<ds41_ctx_destroy>>;
using Seq = std::unique_ptr<ds41_seq, Destroy<ds41_seq_destroy>>;
using Checkpoint = std::unique_ptr<ds41_checkpoint, Destroy<ds41_checkpoint_destroy>>;

ds41_load_options default_options();

// What a call to a progress function carried.
struct Progress {
    uint64_t n_done;
    uint64_t n_total;
    std::string tensor;
};

struct Result {
    ds41_status status = DS41_STATUS_INTERNAL;
    std::string message; // of a failure
    std::vector<std::pair<int32_t, std::string>> log;
    std::vector<Progress> progress;
    bool handle_untouched = true; // of a failure: the handle was left as it was
    Model model;
};

// Loads, and listens to the log and to the progress. `cancel_at`: the call of the progress function (from 0) that asks
// to stop, and all after it; -1 for none. Options bring their own log and progress to nothing: they are replaced.
Result load(const std::string &path, ds41_load_options options = default_options(), int cancel_at = -1);

// Outputs of a prefill and a decode step of every layer that has weights and whose sources have, by layer, all rows
// one after the other.
using Outputs = std::map<int32_t, std::vector<uint16_t>>;
Outputs outputs_of(ds41_model *model);
Outputs outputs_of(ds41_ctx *ctx, ds41_seq *seq, const ds41_config &config);

ds41_config config_of(const ds41_model *model);

} // namespace checkpoint_test
