// Products by tiles (AMX-BF16): 16 weight rows of 32 columns, straight from where the weights lie, times 32 columns of
// 16 tokens. Numerics: a tile's product is two f32 sums, of even and of odd columns in ascending order, added to each
// other and then to the running sum; so every sum depends on its own row and token alone.
#include "backend/cpu/pairs.h"

#if DS41_CPU_HAS_PAIRS

#include "backend/cpu/fp8_pairs.h"

#include <cstring>

// A tile's registers are named by constants, and keep what they hold between functions: nothing else uses them.
#define DS41_AMX __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,amx-tile,amx-bf16")))
#define DS41_AMX_INLINE static inline __attribute__((always_inline)) DS41_AMX

namespace ds41::cpu {

namespace {

constexpr int kPairTokens = 2 * kTileTokens;
constexpr int kFourTokens = 4 * kTileTokens;

// 128 rows of 4096 columns of bf16 are 1 MiB, and 64 tokens of them half of that: both find room in 2 MiB of level 2
// cache.
constexpr int kMostRows = 128;
constexpr int kFourCols = 4096;

// Registers: sums of (row tile, token tile) 0 to 3, weights 4 and 5, activations 6 and 7.
struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// The compiler does not know that tiles, and what they are, are loaded from memory: what has been stored at `p`, and
// all else, is there now, and nothing is stored before its time.
DS41_AMX_INLINE void written(const void *p) {
    __asm__ volatile("" ::"r"(p) : "memory");
}

DS41_AMX_INLINE void set(TileConfig &c, int tile, int rows, int row_bytes) {
    if (rows == 0 || row_bytes == 0) return;
    c.rows[tile] = static_cast<std::uint8_t>(rows);
    c.row_bytes[tile] = static_cast<std::uint16_t>(row_bytes);
}

// n0 tokens in the first tile, n1 in the second: 0 for none.
DS41_AMX_INLINE void configure(int n_rows, int n0, int n1) {
    TileConfig c;
    const int rows0 = std::min(n_rows, kTileRows), rows1 = n_rows - rows0;
    set(c, 0, rows0, 4 * n0);
    set(c, 1, rows0, 4 * n1);
    set(c, 2, rows1, 4 * n0);
    set(c, 3, rows1, 4 * n1);
    set(c, 4, rows0, 64);
    set(c, 5, rows1, 64);
    set(c, 6, kTileRows, 4 * n0);
    set(c, 7, kTileRows, 4 * n1);
    written(&c);
    _tile_loadconfig(&c);
    written(&c);
}

// Four full tiles of tokens. Registers: their sums 0 to 3, weights 4, activations 5 to 7.
DS41_AMX_INLINE void configure_four(int n_rows) {
    TileConfig c;
    for (int tile = 0; tile < 5; ++tile) set(c, tile, n_rows, 64);
    for (int tile = 5; tile < 8; ++tile) set(c, tile, kTileRows, 64);
    written(&c);
    _tile_loadconfig(&c);
    written(&c);
}

// How tiles of weights lie: rows `stride` apart, steps of 32 columns `step`, the second 16 rows `second`.
struct WeightTiles {
    const std::uint8_t *at;
    std::size_t stride, step, second;
};

struct TokenTiles {
    const Bf16 *at[2];
    int n[2];
};

template <bool kTwoRows, bool kTwoTokens> DS41_AMX_INLINE void clear_sums() {
    _tile_zero(0);
    if (kTwoTokens) _tile_zero(1);
    if (kTwoRows) _tile_zero(2);
    if (kTwoRows && kTwoTokens) _tile_zero(3);
}
template <bool kTwoRows, bool kTwoTokens> DS41_AMX_INLINE void load_sums(const float *sums) {
    _tile_loadd(0, sums, 64);
    if (kTwoTokens) _tile_loadd(1, sums + 256, 64);
    if (kTwoRows) _tile_loadd(2, sums + 512, 64);
    if (kTwoRows && kTwoTokens) _tile_loadd(3, sums + 768, 64);
}
template <bool kTwoRows, bool kTwoTokens> DS41_AMX_INLINE void store_sums(float *sums) {
    _tile_stored(0, sums, 64);
    if (kTwoTokens) _tile_stored(1, sums + 256, 64);
    if (kTwoRows) _tile_stored(2, sums + 512, 64);
    if (kTwoRows && kTwoTokens) _tile_stored(3, sums + 768, 64);
}

// Weights from memory are asked for some steps ahead in each row; at the end of the rows those that follow in memory.
constexpr int kStepsAhead = 4;

template <bool kTwoRows, bool kTwoTokens, bool kAhead>
DS41_AMX_INLINE void add_steps(const WeightTiles &w, const TokenTiles &x, std::int64_t n_steps) {
    const std::uint8_t *w0 = w.at, *w1 = w.at + w.second;
    const Bf16 *x0 = x.at[0], *x1 = x.at[1];
    const std::size_t row0 = 4 * static_cast<std::size_t>(x.n[0]), row1 = 4 * static_cast<std::size_t>(x.n[1]);
    for (std::int64_t i = 0; i < n_steps; ++i) {
        _tile_loadd(6, x0, row0);
        _tile_loadd(4, w0, w.stride);
        _tile_dpbf16ps(0, 4, 6);
        if (kTwoTokens) {
            _tile_loadd(7, x1, row1);
            _tile_dpbf16ps(1, 4, 7);
            x1 += kTileCols * x.n[1];
        }
        if (kTwoRows) {
            _tile_loadd(5, w1, w.stride);
            _tile_dpbf16ps(2, 5, 6);
            if (kTwoTokens) _tile_dpbf16ps(3, 5, 7);
        }
        if (kAhead) {
            const std::int64_t step = i + kStepsAhead;
            const std::uint8_t *next = step < n_steps
                                           ? w.at + static_cast<std::size_t>(step) * w.step
                                           : w.at + 2 * w.second + static_cast<std::size_t>(step - n_steps) * w.step;
            for (int r = 0; r < (kTwoRows ? 2 : 1) * kTileRows; ++r, next += w.stride) __builtin_prefetch(next, 0, 3);
        }
        x0 += kTileCols * x.n[0];
        w0 += w.step;
        w1 += w.step;
    }
}

// Masked by all ones as in fp8_pairs.h.
DS41_AMX_INLINE __m512i low32(__m512i a, __m512i b) {
    return _mm512_maskz_unpacklo_epi32(0xffff, a, b);
}
DS41_AMX_INLINE __m512i high32(__m512i a, __m512i b) {
    return _mm512_maskz_unpackhi_epi32(0xffff, a, b);
}
DS41_AMX_INLINE __m512i low64(__m512i a, __m512i b) {
    return _mm512_maskz_unpacklo_epi64(0xff, a, b);
}
DS41_AMX_INLINE __m512i high64(__m512i a, __m512i b) {
    return _mm512_maskz_unpackhi_epi64(0xff, a, b);
}
// Quarters 0 and 2 of both, or 1 and 3.
DS41_AMX_INLINE __m512i even128(__m512i a, __m512i b) {
    return _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0x88);
}
DS41_AMX_INLINE __m512i odd128(__m512i a, __m512i b) {
    return _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0xdd);
}

// Sixteen rows of sixteen 32-bit values, transposed.
DS41_AMX_INLINE void transpose(__m512i (&r)[16]) {
    __m512i s[16];
    for (int i = 0; i < 16; i += 2) {
        s[i] = low32(r[i], r[i + 1]);
        s[i + 1] = high32(r[i], r[i + 1]);
    }
    // r[4 i + j]: in each quarter q, column 4 q + j of rows 4 i to 4 i + 3.
    for (int i = 0; i < 16; i += 4) {
        r[i] = low64(s[i], s[i + 2]);
        r[i + 1] = high64(s[i], s[i + 2]);
        r[i + 2] = low64(s[i + 1], s[i + 3]);
        r[i + 3] = high64(s[i + 1], s[i + 3]);
    }
    for (int j = 0; j < 4; ++j) {
        const __m512i even_low = even128(r[j], r[4 + j]), even_high = even128(r[8 + j], r[12 + j]);
        const __m512i odd_low = odd128(r[j], r[4 + j]), odd_high = odd128(r[8 + j], r[12 + j]);
        s[j] = even128(even_low, even_high);
        s[4 + j] = even128(odd_low, odd_high);
        s[8 + j] = odd128(even_low, even_high);
        s[12 + j] = odd128(odd_low, odd_high);
    }
    for (int i = 0; i < 16; ++i) r[i] = s[i];
}

// Sums [row][token] of a tile to out[token][row], as many as there are.
DS41_AMX_INLINE void put_sums(const float *sums, int n_rows, int n_tokens, float *out, std::int64_t stride_out) {
    n_rows = std::min(n_rows, kTileRows);
    if (n_tokens <= 2) {
        for (int t = 0; t < n_tokens; ++t)
            for (int r = 0; r < n_rows; ++r) out[t * stride_out + r] = sums[r * kTileTokens + t];
        return;
    }
    __m512i v[16];
    for (int r = 0; r < kTileRows; ++r) v[r] = _mm512_load_si512(sums + r * kTileTokens);
    transpose(v);
    const auto there = static_cast<__mmask16>((1u << n_rows) - 1);
    for (int t = 0; t < n_tokens; ++t) _mm512_mask_storeu_epi32(out + t * stride_out, there, v[t]);
}

template <bool kTwoRows, bool kTwoTokens>
DS41_AMX_INLINE void finish(const TokenTiles &x, int n_rows, float *out, std::int64_t stride_out) {
    alignas(64) float sums[4 * kTileRows * kTileTokens];
    // Rows and tokens that a tile does not have are not stored, and go no further.
    store_sums<kTwoRows, kTwoTokens>(sums);
    const int rest = n_rows - kTileRows;
    float *const second = out + kTileTokens * stride_out;
    put_sums(sums, n_rows, x.n[0], out, stride_out);
    if (kTwoTokens) put_sums(sums + 256, n_rows, x.n[1], second, stride_out);
    if (kTwoRows) put_sums(sums + 512, rest, x.n[0], out + kTileRows, stride_out);
    if (kTwoRows && kTwoTokens) put_sums(sums + 768, rest, x.n[1], second + kTileRows, stride_out);
}

DS41_AMX_INLINE TokenTiles tokens_at(const DotArgs &a, int first) {
    TokenTiles x{};
    x.n[0] = std::min(a.n_tokens - first, kTileTokens);
    x.n[1] = std::min(a.n_tokens - first - x.n[0], kTileTokens);
    x.at[0] = a.pairs + pairs_of(a.k, first);
    x.at[1] = x.n[1] > 0 ? x.at[0] + pairs_of(a.k, kTileTokens) : x.at[0];
    return x;
}

DS41_AMX_INLINE TokenTiles moved(TokenTiles x, std::int64_t n_steps) {
    for (int i = 0; i < 2; ++i) x.at[i] += n_steps * kTileCols * x.n[i];
    return x;
}

// The columns that are no whole step, of each row, with zeros.
DS41_AMX_INLINE WeightTiles rest_of_rows(const DotArgs &a, std::int64_t n_steps, std::uint8_t *rest) {
    std::memset(rest, 0, 2 * kTileBytes);
    for (int r = 0; r < a.n_rows; ++r)
        std::memcpy(rest + 64 * r, a.weights + static_cast<std::size_t>(r) * a.row_bytes + 64 * n_steps,
                    static_cast<std::size_t>(2 * (a.k - kTileCols * n_steps)));
    written(rest);
    return {rest, 64, 0, kTileBytes};
}

// 32 tokens times a chunk of rows: whole steps, then what is left of the rows, if anything.
struct Bf16Call {
    WeightTiles whole, rest;
    TokenTiles x;
    std::int64_t n_steps;
    int n_rows;
    bool has_rest;
    bool ahead;
    float *out;
    std::int64_t stride_out;
};
template <bool kTwoRows, bool kTwoTokens> DS41_AMX void multiply_bf16(const Bf16Call &c) {
    clear_sums<kTwoRows, kTwoTokens>();
    if (c.ahead)
        add_steps<kTwoRows, kTwoTokens, true>(c.whole, c.x, c.n_steps);
    else
        add_steps<kTwoRows, kTwoTokens, false>(c.whole, c.x, c.n_steps);
    if (c.has_rest) add_steps<kTwoRows, kTwoTokens, false>(c.rest, moved(c.x, c.n_steps), 1);
    finish<kTwoRows, kTwoTokens>(c.x, c.n_rows, c.out, c.stride_out);
}
// [two rows][two tokens]
constexpr void (*kMultiplyBf16[2][2])(const Bf16Call &) = {{multiply_bf16<false, false>, multiply_bf16<false, true>},
                                                           {multiply_bf16<true, false>, multiply_bf16<true, true>}};

// 64 tokens times up to 16 rows, of which the weights are loaded once: columns [column, end). Sums rest in memory
// from one block of columns to the next.
DS41_AMX void multiply_four(const DotArgs &a, const Bf16 *x, int row, std::int64_t column, std::int64_t end, bool ahead,
                            float *sums) {
    const std::int64_t n_steps = (end - column) / kTileCols;
    const std::int64_t of_tile = pairs_of(a.k, kTileTokens);
    const std::uint8_t *w = a.weights + static_cast<std::size_t>(row) * a.row_bytes + 2 * column;
    x += column * kTileTokens;
    if (column == 0)
        clear_sums<true, true>();
    else
        load_sums<true, true>(sums);
    const auto add = [&](const std::uint8_t *at, std::size_t stride) DS41_AMX {
        _tile_loadd(4, at, stride);
        _tile_loadd(5, x, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, x + of_tile, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, x + 2 * of_tile, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, x + 3 * of_tile, 64);
        _tile_dpbf16ps(3, 4, 5);
        x += kTileCols * kTileTokens;
    };
    for (std::int64_t i = 0; i < n_steps; ++i, w += 2 * kTileCols) {
        add(w, a.row_bytes);
        if (ahead) {
            // At the end of the columns those of the next rows.
            const std::uint8_t *next = w + 2 * kTileCols * kStepsAhead;
            if (i + kStepsAhead >= n_steps) next += kTileRows * a.row_bytes - 2 * kTileCols * n_steps;
            for (int r = 0; r < kTileRows; ++r, next += a.row_bytes) __builtin_prefetch(next, 0, 3);
        }
    }
    if (end == a.k && end % kTileCols != 0) {
        alignas(64) std::uint8_t rest[2 * kTileBytes];
        DotArgs of_rows = a;
        of_rows.weights += static_cast<std::size_t>(row) * a.row_bytes;
        of_rows.n_rows = std::min(a.n_rows - row, kTileRows);
        const WeightTiles tiles = rest_of_rows(of_rows, a.k / kTileCols, rest);
        add(tiles.at, tiles.stride);
    }
    store_sums<true, true>(sums);
}

DS41_AMX void dot_bf16(const DotArgs &a) {
    const std::int64_t stride_out = (a.n_rows + kChunkRows - 1) / kChunkRows * kChunkRows;
    const int n_fours = a.n_tokens / kFourTokens, n_row_tiles = (a.n_rows + kTileRows - 1) / kTileRows;
    constexpr int kFourSums = 4 * kTileRows * kTileTokens;
    // Only where they are read again weights come by blocks of columns: memory likes whole rows.
    const std::int64_t n_cols = n_fours > 1 ? kFourCols : a.k;
    for (std::int64_t column = 0; column < a.k && n_fours > 0; column += n_cols) {
        const std::int64_t end = std::min(a.k, column + n_cols);
        for (int four = 0; four < n_fours; ++four) {
            const int first = four * kFourTokens;
            for (int tile = 0; tile < n_row_tiles; ++tile) {
                const int row = tile * kTileRows, n_rows = std::min(a.n_rows - row, kTileRows);
                if ((column == 0 && first == 0 && row == 0) || a.n_rows % kTileRows != 0) configure_four(n_rows);
                float *sums = a.sums + (four * n_row_tiles + tile) * kFourSums;
                multiply_four(a, a.pairs + pairs_of(a.k, first), row, column, end, first == 0, sums);
                if (end < a.k) continue;
                for (int i = 0; i < 4; ++i)
                    put_sums(sums + i * kTileRows * kTileTokens, n_rows, kTileTokens,
                             a.out + (first + i * kTileTokens) * stride_out + row, stride_out);
            }
        }
    }
    for (int row = 0; row < a.n_rows && n_fours * kFourTokens < a.n_tokens; row += kChunkRows) {
        DotArgs rows = a;
        rows.weights += static_cast<std::size_t>(row) * a.row_bytes;
        rows.n_rows = std::min(a.n_rows - row, kChunkRows);
        Bf16Call c{};
        c.whole = {rows.weights, a.row_bytes, 2 * kTileCols, kTileRows * a.row_bytes};
        c.n_steps = a.k / kTileCols;
        c.n_rows = rows.n_rows;
        c.stride_out = stride_out;
        alignas(64) std::uint8_t rest[2 * kTileBytes];
        c.has_rest = c.n_steps * kTileCols < a.k;
        if (c.has_rest) c.rest = rest_of_rows(rows, c.n_steps, rest);
        for (int first = n_fours * kFourTokens; first < a.n_tokens; first += kPairTokens) {
            const TokenTiles last = c.x;
            c.x = tokens_at(a, first);
            c.out = a.out + first * stride_out + row;
            c.ahead = first == 0;
            if (c.x.n[0] != last.n[0] || c.x.n[1] != last.n[1]) configure(rows.n_rows, c.x.n[0], c.x.n[1]);
            kMultiplyBf16[rows.n_rows > kTileRows][c.x.n[1] > 0](c);
        }
    }
    _tile_release();
}

// ---- FP8: codes go through a panel of bf16 tiles in the level 1 cache ----

// Columns of the panel: 32 rows of 256 are 16 KiB as bf16, a third of a level 1 cache.
constexpr int kPanelCols = 256;

// The panel's tiles: [column / 32][row / 16].
constexpr std::size_t kPanelStep = 2 * kTileBytes;
constexpr WeightTiles panel_tiles(const std::uint8_t *panel) {
    return {panel, 64, kPanelStep, kTileBytes};
}

// 64 codes of each row, from `column` on; n of the columns are there, a multiple of 32.
DS41_AMX_INLINE void put_codes(const DotArgs &a, const Fp8Scales &scales, std::int64_t column, std::int64_t n,
                               __m512i &largest, std::uint8_t *panel) {
    const __m512i below0 = fp8_below(scales, column / 32),
                  below1 = n >= 64 ? fp8_below(scales, column / 32 + 1) : below0;
    const __mmask64 there = n >= 64 ? ~std::uint64_t{0} : 0xffffffffu;
    const std::uint8_t *row = a.weights + column;
    // Lines ahead in the same rows, at the end of them in those of the next chunk; of short rows, of which a page has
    // several, the next chunk from its start on.
    const auto chunk_bytes = static_cast<std::ptrdiff_t>(a.row_bytes) * a.n_rows;
    constexpr std::int64_t kColsAhead = 512;
    const bool in_rows = a.row_bytes >= 2048;
    const std::uint8_t *ahead = a.weights + chunk_bytes + column * a.n_rows;
    if (in_rows) ahead = row + (column + kColsAhead < a.k ? kColsAhead : chunk_bytes + kColsAhead - a.k);
    const std::size_t next = in_rows ? a.row_bytes : 64;
    for (int r = 0; r < a.n_rows; ++r, row += a.row_bytes, panel += 64, ahead += next) {
        __m512i first, second;
        fp8_pairs(_mm512_maskz_loadu_epi8(there, row), below0, below1, largest, first, second);
        __builtin_prefetch(ahead, 0, 2);
        _mm512_store_si512(panel, first);
        _mm512_store_si512(panel + kPanelStep, second);
    }
}

// 32 tokens at most: while a part of the panel is filled, the other is multiplied.
struct FewCall {
    const DotArgs &a;
    const Fp8Scales &scales;
    TokenTiles x;
    std::uint8_t *panel;
    __m512i largest;
};
template <bool kTwoRows, bool kTwoTokens> DS41_AMX void multiply_few(FewCall &c) {
    const DotArgs &a = c.a;
    TokenTiles x = c.x;
    __m512i largest = c.largest;
    clear_sums<kTwoRows, kTwoTokens>();
    // A tile is loaded only after what was stored there has left for the cache: one part later.
    std::uint8_t *panel = c.panel, *last = panel + 2 * kPanelStep;
    for (std::int64_t column = 0; column < a.k; column += 64, std::swap(panel, last)) {
        put_codes(a, c.scales, column, a.k - column, largest, panel);
        written(panel);
        if (column == 0) continue;
        add_steps<kTwoRows, kTwoTokens, false>(panel_tiles(last), x, 2);
        written(last); // and loaded before it is filled again
        x = moved(x, 2);
    }
    add_steps<kTwoRows, kTwoTokens, false>(panel_tiles(last), x, (a.k - 1) % 64 / kTileCols + 1);
    c.largest = largest;
    finish<kTwoRows, kTwoTokens>(c.x, a.n_rows, a.out, kChunkRows);
}
constexpr void (*kMultiplyFew[2][2])(FewCall &) = {{multiply_few<false, false>, multiply_few<false, true>},
                                                   {multiply_few<true, false>, multiply_few<true, true>}};

// 32 tokens times the panel; sums rest in memory from one block of columns to the next.
struct PanelCall {
    WeightTiles panel;
    TokenTiles x;
    std::int64_t n_steps;
    int n_rows;
    bool is_first, is_last;
    float *sums, *out;
};
template <bool kTwoRows, bool kTwoTokens> DS41_AMX void multiply_panel(const PanelCall &c) {
    if (c.is_first)
        clear_sums<kTwoRows, kTwoTokens>();
    else
        load_sums<kTwoRows, kTwoTokens>(c.sums);
    add_steps<kTwoRows, kTwoTokens, false>(c.panel, c.x, c.n_steps);
    if (c.is_last)
        finish<kTwoRows, kTwoTokens>(c.x, c.n_rows, c.out, kChunkRows);
    else
        store_sums<kTwoRows, kTwoTokens>(c.sums);
}
constexpr void (*kMultiplyPanel[2][2])(const PanelCall &) = {
    {multiply_panel<false, false>, multiply_panel<false, true>},
    {multiply_panel<true, false>, multiply_panel<true, true>}};

DS41_AMX __m512i multiply_many(const DotArgs &a, const Fp8Scales &scales, std::uint8_t *panel) {
    __m512i largest = _mm512_setzero_si512();
    const bool two_rows = a.n_rows > kTileRows;
    PanelCall c{};
    c.panel = panel_tiles(panel);
    c.n_rows = a.n_rows;
    for (std::int64_t column = 0; column < a.k; column += kPanelCols) {
        const std::int64_t n = std::min<std::int64_t>(kPanelCols, a.k - column);
        for (std::int64_t at = 0; at < n; at += 64) {
            put_codes(a, scales, column + at, n - at, largest,
                      panel + static_cast<std::size_t>(at / kTileCols) * kPanelStep);
        }
        written(panel);
        c.n_steps = n / kTileCols;
        c.is_first = column == 0;
        c.is_last = column + n >= a.k;
        for (int first = 0; first < a.n_tokens; first += kPairTokens) {
            const TokenTiles last = c.x;
            c.x = tokens_at(a, first);
            if (c.x.n[0] != last.n[0] || c.x.n[1] != last.n[1]) configure(a.n_rows, c.x.n[0], c.x.n[1]);
            c.x = moved(c.x, column / kTileCols);
            c.sums = a.sums + first * kChunkRows;
            c.out = a.out + first * kChunkRows;
            kMultiplyPanel[two_rows][c.x.n[1] > 0](c);
        }
    }
    return largest;
}

DS41_AMX void dot_fp8_rows(const DotArgs &a, const Fp8Scales &scales) {
    auto *const panel = reinterpret_cast<std::uint8_t *>(a.panel);
    __m512i largest = _mm512_setzero_si512();
    if (a.n_tokens <= kPairTokens) {
        FewCall c{a, scales, tokens_at(a, 0), panel, largest};
        configure(a.n_rows, c.x.n[0], c.x.n[1]);
        kMultiplyFew[a.n_rows > kTileRows][c.x.n[1] > 0](c);
        largest = c.largest;
    } else {
        largest = multiply_many(a, scales, panel);
    }
    _tile_release();
    finish_fp8(a, scales, _mm512_cmpeq_epu8_mask(largest, _mm512_set1_epi8(kE4m3Nan)) != 0);
}

DS41_AMX void dot_fp8(const DotArgs &args) {
    each_block_row(args, [](const DotArgs &a, const Fp8Scales &scales) { dot_fp8_rows(a, scales); });
}

// Pairs of a column next to those of the other tokens: [k / 2][n_tokens][2].
DS41_AMX void put(const Bf16 *rows, std::int64_t stride, int n_tokens, std::int64_t k, Bf16 *out) {
    const std::int64_t end = padded_cols(k);
    if (n_tokens == 1) {
        std::copy_n(rows, k, out);
        std::fill(out + k, out + end, Bf16{0});
        return;
    }
    const auto tokens = static_cast<__mmask16>((1u << n_tokens) - 1);
    for (std::int64_t c = 0; c < end; c += kTileCols) {
        const std::int64_t n = std::clamp<std::int64_t>(k - c, 0, kTileCols);
        const auto there = static_cast<__mmask32>((std::uint64_t{1} << n) - 1);
        __m512i v[16];
        for (int t = 0; t < 16; ++t)
            v[t] = t < n_tokens ? _mm512_maskz_loadu_epi16(there, rows + t * stride + c) : _mm512_setzero_si512();
        transpose(v);
        Bf16 *at = out + c * n_tokens;
        for (int i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(at + 2 * i * n_tokens, tokens, v[i]);
    }
}

} // namespace

const PairKernels kAmxKernels = {dot_bf16, dot_fp8, put, kMostRows};

} // namespace ds41::cpu

#endif
