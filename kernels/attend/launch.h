#pragma once

#include "attend/params.h"
#include "simt/types.h"

namespace ds41::kernels {

// Enqueue. Any number of tokens and heads, none included; any head_dim that is a multiple of 32. Softmax over q . row *
// scale with the head's sink in the denominator only; sums in f32, o rounded to bf16, its last rope_dim values rotated
// back and rounded again. A token without rows, or a head whose sink is +inf, gives zeros; a sink of -inf adds nothing.
// Entries of -1 and what follows them in a row of `groups` are not read further. A token's result depends on nothing
// else in the tile. Of padding o is zeros, whatever stands elsewhere.
int launch_attend(simt::Stream stream, const AttendParams &p);

// The same on tensor cores, for steps of many tokens, without padding: no splits and no workspace, but other bits.
// Sizes for which attend_on_tensor_cores() is false take launch_attend, and its workspace. Nothing is quantised: an
// error (1) where that is asked for.
int launch_attend_tensor(simt::Stream stream, const AttendParams &p);

} // namespace ds41::kernels
