#pragma once

#include "simt/types.h"
#include "topk/params.h"

namespace ds41::kernels {

// Enqueue. Any number of tokens, none included; rows of any width, which is read from device memory; any k.

// The index_topk best of each token's columns: higher score first, then lower group. A key of kNeverTaken is not taken:
// its slot is -1.
int launch_topk(simt::Stream stream, const TopkParams &p);

// The candidate_topk_blocks best blocks of each token. The block that holds the newest visible group has a place
// whatever its scores are; a block's score is otherwise its best, and a block without one is not kept.
int launch_keep_blocks(simt::Stream stream, const KeepBlocksParams &p);

} // namespace ds41::kernels
