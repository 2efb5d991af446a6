// The two rules by which the best k of n scores are found. Both move the winners to the front, in no particular order.
#pragma once

#include "backend/reference/stages.h"

#include <cstdint>

namespace ds41::reference {

// Higher score first, then lower index. No NaN among the scores; k <= n.
void rank_stable(Scored *items, std::int64_t n, std::int64_t k);

// The set that torch.topk returns on a CPU; 1 <= k <= n. `items` are in ascending order of index.
void rank_torch_cpu(Scored *items, std::int64_t n, std::int64_t k);

// Of one token's scores, by the rule of `args`: the candidate blocks that it keeps, and the groups that it takes.
// `scores` and `ranking` reach to the end of what the torch rule ranks, masked beyond what the token sees.
void keep_blocks(const SelectArgs &args, int token, std::int64_t n_visible, const float *scores, Scored *ranking);
void take_best(const SelectArgs &args, int token, std::int64_t n_visible, const float *scores, Scored *ranking);

// Whether rank_torch_cpu can keep its promise in this build.
bool has_torch_cpu_ranking() noexcept;

} // namespace ds41::reference
