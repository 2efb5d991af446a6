// From what the library delivers to what a fixture stores: gathers the taps of a step's chunks and puts them into the
// form of one whole step. The tap table in ds41.h and the table of expected tensors in fixtures/README.md meet here.
#pragma once

#include "array.h"

#include <map>
#include <string>
#include <vector>

namespace replay {

/// Position of a kind of expected tensor in the order of the computation, -1 if there is no such kind.
int order_of(const std::string &kind);

/// Name of the tap that delivers it; NULL for out and out_tail, which are no taps.
const char *tap_of(const std::string &kind);

/// One layer's numbers that decide shapes.
struct Geometry {
    int64_t start_pos; ///< 0: a prefill, stored in that form. Else one decoded token.
    int64_t n_tokens;
    int64_t window;
    int64_t topk;
    int64_t ratio;
    int64_t block_size; ///< Groups per candidate block.

    int64_t end() const { return start_pos + n_tokens; }
    int64_t n_groups(int64_t end_pos) const { return ratio > 0 ? end_pos / ratio : 0; }
    /// First position of the window rows in reach of tokens from `pos` on.
    int64_t first_in_reach(int64_t pos) const { return pos < window ? 0 : pos - window + 1; }
};

/// What one layer delivered for consecutive tokens of a step: taps by name, and "out".
struct Chunk {
    int64_t start_pos;
    int64_t n_tokens;
    std::map<std::string, Array> taps;

    int64_t end() const { return start_pos + n_tokens; }
};

/// Something expected was not delivered, or not in the promised shape. `verdict` is "absent" or "shape".
struct Undelivered {
    std::string verdict;
    std::string note;
};

struct Assembled {
    Array values;
    /// One per row, 0: not delivered, and rightly so (no group is complete yet). Empty: all there.
    std::vector<char> given;
};

/// A kind of tensor in the form in which fixtures store it, for all chunks of the step; out_tail as out, and a state
/// only up to the slots that have a meaning. Throws Undelivered.
Assembled assemble(const std::string &kind, const Geometry &geometry, const std::vector<Chunk> &chunks);

/// Drop what later chunks of the step replace: only the last chunk's ring, state and groups count.
void forget_replaced(const Geometry &geometry, Chunk &chunk);

} // namespace replay
