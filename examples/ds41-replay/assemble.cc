// Row numbers are translated through positions: a tap counts the window rows in reach, a stored prefill the rows of the
// whole step, a stored decode step the slots of the ring.
#include "assemble.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace replay {

namespace {

struct Kind {
    const char *name;
    const char *tap;
};

constexpr Kind kKinds[] = {
    {"q", "q"},
    {"latent", "latent"},
    {"index_keys", "index_k"},
    {"comp_rows", "comp_rows"},
    {"index_q", "index_q"},
    {"index_weights", "index_weights"},
    {"index_score", "scores"},
    {"candidates", "candidates"},
    {"kv_rows", "kv_rows"},
    {"idx", "idx"},
    {"o", "o"},
    {"ring", "ring"},
    {"state_kv", "state_kv"},
    {"state_gate", "state_gate"},
    {"out", nullptr},
    {"out_tail", nullptr},
};

constexpr float kNoRow = -1.0f;
constexpr float kBadRow = -2.0f; // a row number that the tap's own table does not allow: equal to nothing expected

std::string describe(const std::string &name, const Chunk &chunk) {
    return name + " of positions " + std::to_string(chunk.start_pos) + " to " + std::to_string(chunk.end() - 1);
}

const Array *find(const Chunk &chunk, const std::string &name) {
    const auto found = chunk.taps.find(name);
    return found == chunk.taps.end() ? nullptr : &found->second;
}

/// The tap, with the sizes given (-1: any) as its first dimensions.
const Array &need(const Chunk &chunk, const std::string &name, const std::vector<int64_t> &sizes) {
    const Array *tap = find(chunk, name);
    if (!tap) throw Undelivered{"absent", describe(name, chunk) + " was not delivered"};
    bool fits = tap->shape.size() >= sizes.size();
    for (size_t i = 0; fits && i < sizes.size(); ++i) fits = sizes[i] < 0 || tap->shape[i] == sizes[i];
    if (!fits)
        throw Undelivered{"shape", describe(name, chunk) + " has shape " + to_text(tap->shape) +
                                       ", its first dimensions must be " + to_text(sizes)};
    return *tap;
}

void append_rows(Array &target, const Array &source, int64_t first, int64_t n) {
    if (target.shape.empty()) target.shape = source.shape, target.shape[0] = 0;
    if (target.row_size() != source.row_size()) throw Undelivered{"shape", "chunks deliver rows of different sizes"};
    target.values.insert(target.values.end(), source.row(first), source.row(first + n));
    target.shape[0] += n;
}

/// One row per token. Without `needs_group` every chunk must deliver; with it only those with a complete group do.
Assembled per_token(const std::string &name, const Geometry &geometry, const std::vector<Chunk> &chunks,
                    bool needs_group) {
    Assembled result;
    std::vector<char> given;
    int64_t n_before = 0; // tokens before the first chunk that delivers: the row's shape is not known yet
    for (const Chunk &chunk : chunks) {
        const bool skip = needs_group && geometry.n_groups(chunk.end()) == 0;
        given.insert(given.end(), static_cast<size_t>(chunk.n_tokens), !skip);
        if (skip) {
            n_before += chunk.n_tokens; // groups never disappear, so such chunks all come first
            continue;
        }
        append_rows(result.values, need(chunk, name, {chunk.n_tokens}), 0, chunk.n_tokens);
    }
    if (n_before > 0) {
        if (result.values.shape.empty()) throw Undelivered{"absent", name + " was not delivered: no complete group"};
        const size_t n_values = static_cast<size_t>(n_before * result.values.row_size());
        result.values.values.insert(result.values.values.begin(), n_values, 0.0f);
        result.values.shape[0] += n_before;
        result.given = std::move(given);
    }
    return result;
}

/// One row per group completed by a chunk.
Assembled per_group(const std::string &name, const Geometry &geometry, const std::vector<Chunk> &chunks) {
    Assembled result;
    for (const Chunk &chunk : chunks) {
        const int64_t n = geometry.n_groups(chunk.end()) - geometry.n_groups(chunk.start_pos);
        if (n > 0) append_rows(result.values, need(chunk, name, {n}), 0, n);
    }
    if (result.values.shape.empty()) throw Undelivered{"absent", name + " was not delivered: no group was completed"};
    return result;
}

/// One column per group of the whole step; groups that a chunk does not know yet are `missing`.
Assembled token_by_group(const std::string &name, float missing, const Geometry &geometry,
                         const std::vector<Chunk> &chunks) {
    const int64_t n_groups = geometry.n_groups(geometry.end());
    Assembled result{filled({geometry.n_tokens, n_groups}, missing), {}};
    for (const Chunk &chunk : chunks) {
        const int64_t n_known = geometry.n_groups(chunk.end());
        if (n_known == 0) continue;
        const Array &tap = need(chunk, name, {chunk.n_tokens, n_known});
        for (int64_t t = 0; t < chunk.n_tokens; ++t)
            std::copy_n(tap.row(t), n_known, result.values.row(chunk.start_pos - geometry.start_pos + t));
    }
    return result;
}

/// A token keeps blocks, so the column of its chunk's last group tells about the rest of that group's block too.
Assembled candidates(const Geometry &geometry, const std::vector<Chunk> &chunks) {
    if (geometry.block_size < 1) throw Undelivered{"absent", "candidates are not delivered: no candidate blocks"};
    Assembled result = token_by_group("candidates", 0.0f, geometry, chunks);
    const int64_t n_groups = geometry.n_groups(geometry.end());
    for (const Chunk &chunk : chunks) {
        const int64_t n_known = geometry.n_groups(chunk.end());
        const int64_t block_end = (n_known + geometry.block_size - 1) / geometry.block_size * geometry.block_size;
        for (int64_t t = 0; n_known > 0 && t < chunk.n_tokens; ++t) {
            float *row = result.values.row(chunk.start_pos - geometry.start_pos + t);
            std::fill(row + n_known, row + std::min(block_end, n_groups), row[n_known - 1]);
        }
    }
    return result;
}

Assembled kv_rows(const Geometry &geometry, const std::vector<Chunk> &chunks) {
    Assembled result;
    for (const Chunk &chunk : chunks) {
        const int64_t n_reach = chunk.end() - geometry.first_in_reach(chunk.start_pos);
        const bool last = &chunk == &chunks.back();
        const int64_t n_groups = last ? geometry.n_groups(chunk.end()) : 0;
        const Array &tap = need(chunk, "kv_rows", {n_reach + n_groups});
        if (geometry.start_pos == 0) {
            append_rows(result.values, tap, n_reach - chunk.n_tokens, chunk.n_tokens);
        } else { // ring slots
            result.values = filled({geometry.window, tap.row_size()}, 0.0f);
            for (int64_t r = 0; r < n_reach; ++r)
                std::copy_n(tap.row(r), tap.row_size(),
                            result.values.row((geometry.first_in_reach(chunk.start_pos) + r) % geometry.window));
        }
        append_rows(result.values, tap, n_reach, n_groups);
    }
    return result;
}

/// One token's row of the idx tap, stored from `target` on: `n_window` columns, then `n_groups`.
void translate(const Geometry &geometry, const Chunk &chunk, const float *source, int64_t n_source, int64_t pos,
               float *target, int64_t n_window, int64_t n_columns) {
    const int64_t first = geometry.first_in_reach(chunk.start_pos), n_reach = chunk.end() - first;
    const int64_t n_source_window = std::min(geometry.window, n_reach);
    const bool prefill = geometry.start_pos == 0;
    int64_t next_window = 0, next_group = n_window;
    for (int64_t i = 0; i < n_source; ++i) {
        if (source[i] == kNoRow) continue;
        const int64_t row = static_cast<int64_t>(source[i]);
        if (i < n_source_window) {
            const int64_t row_pos = first + row;
            // A decode step's column stands for a fixed distance, a prefill's columns are filled from the left.
            const int64_t column = prefill ? next_window++ : row_pos - (pos - geometry.window + 1);
            const bool valid = row >= 0 && row < n_reach && column >= 0 && column < n_window;
            const int64_t stored = prefill ? row_pos : row_pos % geometry.window;
            target[valid ? column : 0] = valid ? static_cast<float>(stored) : kBadRow;
        } else {
            const bool valid = row >= n_reach && row < n_reach + geometry.n_groups(chunk.end());
            const int64_t n_stored_window = prefill ? geometry.n_tokens : geometry.window;
            target[next_group++] = valid ? static_cast<float>(n_stored_window + row - n_reach) : kBadRow;
        }
    }
    std::fill(target + next_group, target + n_columns, kNoRow);
}

Assembled idx(const Geometry &geometry, const std::vector<Chunk> &chunks) {
    const int64_t n_window = geometry.start_pos == 0 ? std::min(geometry.n_tokens, geometry.window) : geometry.window;
    const int64_t n_columns = n_window + std::min(geometry.topk, geometry.n_groups(geometry.end()));
    Assembled result{filled({geometry.n_tokens, n_columns}, kNoRow), {}};
    for (const Chunk &chunk : chunks) {
        const int64_t n_reach = chunk.end() - geometry.first_in_reach(chunk.start_pos);
        const int64_t n_source =
            std::min(geometry.window, n_reach) + std::min(geometry.topk, geometry.n_groups(chunk.end()));
        const Array &tap = need(chunk, "idx", {chunk.n_tokens, n_source});
        for (int64_t t = 0; t < chunk.n_tokens; ++t)
            translate(geometry, chunk, tap.row(t), n_source, chunk.start_pos + t,
                      result.values.row(chunk.start_pos - geometry.start_pos + t), n_window, n_columns);
    }
    return result;
}

/// Only the slots of the incomplete group's tokens: the others hold leftovers, in the file too.
Assembled state(const std::string &name, const Geometry &geometry, const Chunk &last) {
    const int64_t n_slots = std::max<int64_t>(geometry.ratio, 1);
    Assembled result{need(last, name, {n_slots}), {}};
    result.values.keep_rows(0, geometry.end() % n_slots);
    return result;
}

} // namespace

int order_of(const std::string &kind) {
    for (size_t i = 0; i < std::size(kKinds); ++i)
        if (kind == kKinds[i].name) return static_cast<int>(i);
    return -1;
}

const char *tap_of(const std::string &kind) {
    return kKinds[static_cast<size_t>(order_of(kind))].tap;
}

Assembled assemble(const std::string &kind, const Geometry &geometry, const std::vector<Chunk> &chunks) {
    if (kind == "out" || kind == "out_tail") return per_token("out", geometry, chunks, false);
    const std::string tap = tap_of(kind);
    if (kind == "q" || kind == "o") return per_token(tap, geometry, chunks, false);
    if (kind == "index_q" || kind == "index_weights") return per_token(tap, geometry, chunks, true);
    if (kind == "latent" || kind == "comp_rows" || kind == "index_keys") return per_group(tap, geometry, chunks);
    if (kind == "index_score") return token_by_group(tap, -std::numeric_limits<float>::infinity(), geometry, chunks);
    if (kind == "candidates") return candidates(geometry, chunks);
    if (kind == "kv_rows") return kv_rows(geometry, chunks);
    if (kind == "idx") return idx(geometry, chunks);
    if (kind == "ring") return {need(chunks.back(), tap, {geometry.window}), {}};
    return state(tap, geometry, chunks.back());
}

void forget_replaced(const Geometry &geometry, Chunk &chunk) {
    for (const char *name : {"ring", "state_kv", "state_gate"}) chunk.taps.erase(name);
    const auto rows = chunk.taps.find("kv_rows");
    if (rows == chunk.taps.end()) return;
    const int64_t n_reach = chunk.end() - geometry.first_in_reach(chunk.start_pos);
    if (rows->second.n_rows() != n_reach + geometry.n_groups(chunk.end())) return; // assemble() says what is wrong
    rows->second.values.resize(static_cast<size_t>(n_reach * rows->second.row_size()));
    rows->second.shape[0] = n_reach;
}

} // namespace replay
