// A fixed conversation that can be disturbed at one moment: a refused call made there must leave every position, every
// buffer and every later bit as in the undisturbed run.
#pragma once

#include "support.h"

#include <functional>

namespace api_test {

enum class Moment {
    start,      // nothing has run
    in_prefill, // a's prefill of tokens 0..10 has run layers 0..2; layer 3, a consumer of layer 2, comes next
    in_decode,  // a's token 11 and b's tokens 5..6 have run layers 0..4; layer 5, a consumer of layer 4, comes next
    end         // every layer of a stands at 12, of b at 7; two more tokens of a follow
};

constexpr int32_t kPrefillTokens = 11;
constexpr int32_t kDecodeRows = 3;
constexpr int64_t kEndOfA = 12;
constexpr int64_t kEndOfB = 7;

struct Scene {
    const TestModel &model;
    ds41_ctx *ctx;
    ds41_ctx *idle_ctx; // has run nothing
    ds41_seq *a, *b;
    ds41_seq *fresh;   // of the same model, empty
    ds41_seq *foreign; // of another model with the same configuration
    Rows x, out;

    ds41_tensor x_rows(int64_t n) const { return view(x.at(0), DS41_DTYPE_BF16, {n, model.config.dim}); }
    ds41_tensor out_rows(int64_t n) const { return view(out.at(0), DS41_DTYPE_BF16, {n, model.config.dim}); }

    // The calls with tensors that fit n_tokens, however many are claimed.
    ds41_status prefill(int32_t layer, ds41_seq *seq, int32_t n_tokens, int64_t start_pos, ds41_ctx *on = nullptr);
    ds41_status body(int32_t layer, ds41_ctx *on = nullptr);
};

struct Refusal {
    std::string name;
    Moment moment;
    std::vector<ds41_status> accepted;
    const char *function;
    std::vector<std::string> words;
    std::function<ds41_status(Scene &)> call;
};

// The conversation; `disturb` runs at the moment.
Record converse(const TestModel &model, Moment moment, const std::function<void(Scene &)> &disturb);

// Make each call in a conversation of its own (on the simulated device, all of a moment in one), check its status and
// sentence, that it changed nothing, and that the conversation ends as it should.
void check_refusals(const std::vector<Refusal> &refusals);

} // namespace api_test
