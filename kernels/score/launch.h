#pragma once

#include "score/params.h"
#include "simt/types.h"

namespace ds41::kernels {

// Enqueue. Any number of tokens, none included; any index_n_heads, any index_head_dim that is a multiple of 32; any
// block_size. A score is bf16( sum_h bf16( relu(bf16(iq_h . k)) * w_h ) ), heads in ascending order in f32; it does not
// depend on what else is in the tile.
int launch_score(simt::Stream stream, const ScoreParams &p);

} // namespace ds41::kernels
