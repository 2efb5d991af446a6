// The one forward: every layer kind, prefill and decode, as the stages of the design over tiles of tokens.
#pragma once

#include "forward/step.h"
#include "forward/tap.h"
#include "forward/workspace.h"

namespace ds41 {

// Everything is checked, reserved and laid out: what fails is a device. `x` and `out` are [n_tokens, dim] and may be
// the same. `tap` may be null. The step learns what was published; its sequences and its progress are the caller's to
// advance.
void run_layer(const Model &model, Stages &stages, const Workspace &workspace, Step &step, int layer, const Bf16 *x,
               Bf16 *out, TapRun *tap);

} // namespace ds41
