// What happens to single rows: norm, rotation, packing, pooling, group states and the ring, against the reference's
// row functions and lib/numeric.
#include "rows/launch.h"

#include "backend/reference/rows.h"
#include "common/exp.cuh"
#include "common/quantised.cuh"
#include "paged_step.h"
#include "quantised.h"
#include "support/compare.h"

#include <numeric>

using namespace ds41;
using namespace ds41::kernels;
using namespace ds41::test;

namespace {

constexpr float kEps = 1e-6f;

std::size_t at(std::int64_t index) {
    return static_cast<std::size_t>(index);
}

std::size_t packed_size(RowPacking packing, int width) {
    switch (packing) {
    case RowPacking::kWindow:
        return window_row_bytes(width);
    case RowPacking::kCompressed:
        return compressed_row_bytes(width);
    case RowPacking::kIndexKey:
        return index_key_row_bytes(width);
    case RowPacking::kNone:
        break;
    }
    return 0;
}

std::vector<std::uint8_t> packed(RowPacking packing, const std::vector<Bf16> &row) {
    const int width = static_cast<int>(row.size());
    std::vector<std::uint8_t> bytes(packed_size(packing, width));
    if (packing == RowPacking::kWindow) pack_window_row(row.data(), width, bytes.data());
    if (packing == RowPacking::kCompressed) pack_compressed_row(row.data(), width, bytes.data());
    if (packing == RowPacking::kIndexKey) pack_index_key_row(row.data(), width, bytes.data());
    return bytes;
}

std::vector<Bf16> unpacked(RowPacking packing, const std::vector<std::uint8_t> &bytes, int width) {
    std::vector<Bf16> row(at(width));
    if (packing == RowPacking::kWindow) unpack_window_row(bytes.data(), width, row.data());
    if (packing == RowPacking::kCompressed) unpack_compressed_row(bytes.data(), width, row.data());
    if (packing == RowPacking::kIndexKey) unpack_index_key_row(bytes.data(), width, row.data());
    return row;
}

// The same bytes, or what a NaN leaves open: signs and payloads of its codes.
void check_packed(RowPacking packing, const std::vector<std::uint8_t> &actual, const std::vector<Bf16> &row) {
    const int width = static_cast<int>(row.size());
    const bool has_nan = std::any_of(row.begin(), row.end(), [](Bf16 v) { return is_nan(to_f32(v)); });
    const std::vector<std::uint8_t> expected = packed(packing, row);
    if (has_nan)
        CHECK(same_bits(unpacked(packing, actual, width), unpacked(packing, expected, width)));
    else
        CHECK(same_bits(actual, expected));
}

// ---- A launch's jobs.

enum class Target { kNone, kApart, kInPlace };

struct JobCase {
    const char *name;
    int width;
    bool norm = false;
    int n_pairs = -1; // negative: no rotation
    RowPacking packing = RowPacking::kNone;
    bool to_pages = false;
    Target out = Target::kNone;
    int rows_per_token = 1;
    int ratio = 0;
    int gap = 4; // elements between two tokens' rows
    QuantisedForm quantised = QuantisedForm::kNone;
};

enum class Values { kNormal, kUneven, kTiny, kHuge, kZero, kSpecial };

std::vector<Bf16> make_row(Random &random, int width, Values values) {
    std::vector<Bf16> row;
    for (int i = 0; i < width; ++i) switch (values) {
        case Values::kNormal:
            row.push_back(to_bf16(static_cast<float>(random.normal())));
            break;
        case Values::kTiny:
            row.push_back(to_bf16(static_cast<float>(random.normal() * 1e-38)));
            break;
        case Values::kHuge:
            row.push_back(to_bf16(static_cast<float>(random.normal() * 1e37)));
            break;
        case Values::kZero:
            row.push_back(Bf16{static_cast<std::uint16_t>(i % 3 ? 0 : 0x8000)});
            break;
        case Values::kUneven:
            row.push_back(to_bf16(static_cast<float>(std::ldexp(random.normal(), (i / 16 * 7) % 31 - 15))));
            break;
        case Values::kSpecial: {
            const std::uint16_t kSpecials[] = {0x7fc0, 0xffc1, 0x7f80, 0xff80};
            const bool special = random.below(24) == 0;
            row.push_back(special ? Bf16{kSpecials[random.below(4)]} : to_bf16(static_cast<float>(random.normal())));
            break;
        }
        }
    return row;
}

// Angles of token i of the tile, made for this test alone: rotation does not care where they come from.
struct Rotation {
    RopeTable rope = RopeTable::plain(0, 10000.0f);
    Array<float> angles;
};

Rotation make_rotation(const JobCase &c, const Array<Token> &tokens, int first, int n) {
    Rotation rotation;
    if (c.n_pairs < 0) return rotation;
    rotation.rope = RopeTable::plain(2 * c.n_pairs, 10000.0f);
    rotation.angles = Array<float>(at(2 * n * c.n_pairs));
    for (int i = 0; i < n && tokens[at(first + i)].span != kNoSpan; ++i)
        for (int k = 0; k < c.n_pairs; ++k) {
            float *const angle = rotation.angles.data() + 2 * (i * c.n_pairs + k);
            rotation.rope.angle(tokens[at(first + i)].pos, k, angle[0], angle[1]);
        }
    return rotation;
}

std::vector<Bf16> finished(const JobCase &c, std::vector<Bf16> row, const float *norm, const Rotation &rotation,
                           std::int64_t pos) {
    if (c.norm) reference::rms_norm(row.data(), c.width, norm, kEps);
    if (c.n_pairs >= 0) reference::rotate(row.data(), c.width, rotation.rope, pos, reference::Turn::kForward);
    return row;
}

struct Job {
    JobCase c;
    Array<Bf16> rows, out;
    Array<float> norm;
    Array<std::uint8_t> packed;
    Rotation rotation;
    QuantisedCopy quantised{QuantisedForm::kNone, 0, 0};
    std::vector<Pages> pages;              // by span
    std::vector<std::vector<Bf16>> before; // by token and row of it

    std::int64_t stride() const { return std::int64_t{c.rows_per_token} * c.width + c.gap; }
};

Array<float> make_norm(Random &random, int width) {
    Array<float> norm(at(width));
    for (std::size_t i = 0; i < norm.size(); ++i) norm[i] = static_cast<float>(random.uniform(-2.0, 2.0));
    return norm;
}

// Run the jobs of one tile in one launch and look at everything that they write. The tile may have places behind the
// step's last token.
void check_jobs(Random &random, const std::vector<JobCase> &cases, const Spans &spans, int first, int n,
                Values values) {
    const auto tokens = padded(tokens_of(spans), std::max(0, first + n - token_count(spans)));
    const auto span_rows = span_rows_of(spans);
    std::vector<Job> jobs;
    RowsParams p{};
    for (const JobCase &c : cases) {
        Job job;
        job.c = c;
        job.rows = Array<Bf16>(at((n - 1) * job.stride() + c.rows_per_token * c.width));
        for (int i = 0; i < n; ++i)
            for (int sub = 0; sub < c.rows_per_token; ++sub) {
                const bool is_padding = tokens[at(first + i)].span == kNoSpan;
                job.before.push_back(is_padding ? std::vector<Bf16>(at(c.width), Bf16{0xffff})
                                                : make_row(random, c.width, values));
                std::copy(job.before.back().begin(), job.before.back().end(),
                          job.rows.data() + i * job.stride() + sub * c.width);
            }
        if (c.out == Target::kApart) job.out = Array<Bf16>(job.rows.size());
        if (c.norm) job.norm = make_norm(random, c.width);
        job.quantised = QuantisedCopy(c.quantised, n, c.width);
        job.rotation = make_rotation(c, tokens, first, n);
        const std::size_t row_bytes = packed_size(c.packing, c.width);
        if (row_bytes > 0 && !c.to_pages) job.packed = Array<std::uint8_t>(at(n) * at(c.rows_per_token) * row_bytes);
        if (c.to_pages)
            for (std::size_t s = 0; s < spans.size(); ++s) {
                job.pages.emplace_back(spans[s].end_pos() / c.ratio, row_bytes);
                (c.packing == RowPacking::kCompressed ? span_rows[s].compressed : span_rows[s].index_keys) =
                    job.pages.back().table();
            }
        jobs.push_back(std::move(job));
    }
    for (std::size_t j = 0; j < jobs.size(); ++j) {
        Job &job = jobs[j];
        RowJob &r = p.jobs[j];
        r.source = RowSource::kRow;
        r.packing = job.c.packing;
        r.rows = job.rows.data();
        r.norm = job.c.norm ? job.norm.data() : nullptr;
        r.angles = job.c.n_pairs >= 0 ? job.rotation.angles.data() : nullptr;
        r.out = job.c.out == Target::kNone ? nullptr : job.c.out == Target::kApart ? job.out.data() : job.rows.data();
        r.packed = job.packed.size() ? job.packed.data() : nullptr;
        r.quantised = job.quantised.rows();
        r.stride_rows = r.stride_out = job.stride();
        r.rows_per_token = job.c.rows_per_token;
        r.width = job.c.width;
        r.n_pairs = job.c.n_pairs >= 0 ? job.c.n_pairs : job.c.width / 2; // without angles nothing turns
        r.ratio = job.c.ratio;
        r.eps = kEps;
    }
    p.tokens = tokens.data();
    p.spans = span_rows.data();
    p.n_jobs = static_cast<std::int32_t>(jobs.size());
    p.first = first;
    p.n = n;
    REQUIRE_LAUNCHES(launch_rows(nullptr, p));

    for (const Job &job : jobs) {
        const JobCase &c = job.c;
        CAPTURE(std::string(c.name));
        CAPTURE(c.width);
        const std::size_t row_bytes = packed_size(c.packing, c.width);
        std::vector<std::vector<bool>> written(spans.size());
        for (std::size_t s = 0; s < spans.size() && c.to_pages; ++s)
            written[s].resize(at(spans[s].end_pos() / c.ratio));
        for (int i = 0; i < n; ++i) {
            CAPTURE(i);
            const Token token = tokens[at(first + i)];
            const bool is_due = token.span != kNoSpan && (c.ratio == 0 || (token.pos + 1) % c.ratio == 0);
            for (int sub = 0; sub < c.rows_per_token; ++sub) {
                CAPTURE(sub);
                const std::vector<Bf16> &before = job.before[at(i * c.rows_per_token + sub)];
                const auto expected = is_due ? finished(c, before, job.norm.data(), job.rotation, token.pos) : before;
                const std::size_t begin = at(i * job.stride() + sub * c.width);
                const auto rows_now = job.rows.get(begin, at(c.width));
                CHECK(same_bits(rows_now, c.out == Target::kInPlace && is_due ? expected : before));
                if (c.out == Target::kApart)
                    CHECK(same_bits(job.out.get(begin, at(c.width)),
                                    is_due ? expected : std::vector<Bf16>(at(c.width), Bf16{0xffff})));
                if (c.quantised != QuantisedForm::kNone) {
                    if (is_due)
                        job.quantised.check(i, expected);
                    else
                        job.quantised.check_untouched(i);
                }
                if (job.packed.size()) {
                    const auto bytes = job.packed.get(at(i * c.rows_per_token + sub) * row_bytes, row_bytes);
                    if (is_due)
                        check_packed(c.packing, bytes, expected);
                    else
                        CHECK(bytes == std::vector<std::uint8_t>(row_bytes, 0xff));
                }
                if (c.to_pages && is_due) {
                    const std::size_t s = at(token.span);
                    const std::uint8_t *row = job.pages[s].row(token.pos / c.ratio);
                    check_packed(c.packing, std::vector<std::uint8_t>(row, row + row_bytes), expected);
                    written[s][at(token.pos / c.ratio)] = true;
                }
            }
            // Between two tokens' rows.
            if (i + 1 < n)
                for (int e = 0; e < c.gap; ++e) {
                    const std::size_t between = at(i * job.stride() + c.rows_per_token * c.width + e);
                    CHECK(job.rows[between].bits == 0xffff);
                    if (c.out == Target::kApart) CHECK(job.out[between].bits == 0xffff);
                }
        }
        for (std::size_t s = 0; s < spans.size() && c.to_pages; ++s)
            for (std::size_t g = 0; g < written[s].size(); ++g) {
                const std::uint8_t *row = job.pages[s].row(static_cast<std::int64_t>(g));
                if (!written[s][g])
                    CHECK(std::all_of(row, row + row_bytes, [](std::uint8_t byte) { return byte == 0xff; }));
            }
    }
}

const JobCase kJobs[] = {
    {.name = "copy", .width = 70, .out = Target::kApart},
    {.name = "norm", .width = 512, .norm = true, .out = Target::kApart},
    {.name = "norm in place", .width = 1536, .norm = true, .out = Target::kInPlace, .gap = 0},
    {.name = "norm of an odd width", .width = 131, .norm = true, .out = Target::kApart, .gap = 1},
    {.name = "norm of one value", .width = 1, .norm = true, .out = Target::kApart},
    {.name = "rotation", .width = 128, .n_pairs = 32, .out = Target::kApart},
    {.name = "rotation of the whole row in place", .width = 64, .n_pairs = 32, .out = Target::kInPlace},
    {.name = "rotation of nothing", .width = 64, .n_pairs = 0, .out = Target::kApart},
    {.name = "rotation of more pairs than threads", .width = 400, .n_pairs = 200, .out = Target::kApart},
    {.name = "window row", .width = 512, .packing = RowPacking::kWindow},
    {.name = "window row, all at once",
     .width = 512,
     .norm = true,
     .n_pairs = 32,
     .packing = RowPacking::kWindow,
     .out = Target::kApart},
    {.name = "narrow window row",
     .width = 32,
     .norm = true,
     .n_pairs = 4,
     .packing = RowPacking::kWindow,
     .out = Target::kInPlace},
    {.name = "window row of three blocks", .width = 96, .packing = RowPacking::kWindow, .rows_per_token = 3},
    {.name = "window row of more blocks than threads", .width = 4224, .packing = RowPacking::kWindow},
    {.name = "compressed row", .width = 512, .packing = RowPacking::kCompressed},
    {.name = "narrow compressed row",
     .width = 32,
     .n_pairs = 8,
     .packing = RowPacking::kCompressed,
     .out = Target::kApart},
    {.name = "compressed row of six blocks", .width = 96, .packing = RowPacking::kCompressed, .rows_per_token = 2},
    {.name = "compressed rows into pages",
     .width = 512,
     .n_pairs = 32,
     .packing = RowPacking::kCompressed,
     .to_pages = true,
     .ratio = 1},
    {.name = "compressed rows of groups into pages",
     .width = 96,
     .norm = true,
     .packing = RowPacking::kCompressed,
     .to_pages = true,
     .out = Target::kApart,
     .ratio = 2},
    {.name = "index key", .width = 128, .norm = true, .n_pairs = 32, .packing = RowPacking::kIndexKey},
    {.name = "index keys of heads", .width = 128, .n_pairs = 32, .packing = RowPacking::kIndexKey, .rows_per_token = 5},
    {.name = "narrow index keys of heads",
     .width = 32,
     .packing = RowPacking::kIndexKey,
     .out = Target::kInPlace,
     .rows_per_token = 4},
    {.name = "index key of three blocks", .width = 96, .packing = RowPacking::kIndexKey, .rows_per_token = 3},
    {.name = "index keys into pages",
     .width = 128,
     .norm = true,
     .n_pairs = 32,
     .packing = RowPacking::kIndexKey,
     .to_pages = true,
     .ratio = 1},
    {.name = "index keys of groups into pages",
     .width = 96,
     .n_pairs = 8,
     .packing = RowPacking::kIndexKey,
     .to_pages = true,
     .ratio = 4},
    {.name = "fp8 copy of a normed row",
     .width = 1536,
     .norm = true,
     .out = Target::kApart,
     .quantised = QuantisedForm::kFp8},
    {.name = "q8 copy of a normed and rotated row, which nobody wants otherwise",
     .width = 512,
     .norm = true,
     .n_pairs = 32,
     .quantised = QuantisedForm::kQ8},
    {.name = "fp8 copy of one block", .width = 32, .quantised = QuantisedForm::kFp8},
    {.name = "q8 copy of a plain row, in a warp in part", .width = 608, .quantised = QuantisedForm::kQ8},
    {.name = "fp8 copy beside a packed row",
     .width = 96,
     .n_pairs = 8,
     .packing = RowPacking::kWindow,
     .out = Target::kInPlace,
     .quantised = QuantisedForm::kFp8},
    {.name = "q8 copies of groups only", .width = 224, .ratio = 2, .quantised = QuantisedForm::kQ8},
    {.name = "groups only", .width = 40, .norm = true, .out = Target::kInPlace, .ratio = 3},
};

const Spans kSpansOf[] = {
    {{0, 1}},
    {{63, 2}, {1, 1}},
    {{5, 3}, {0, 1}, {125, 12}},
    {{60, 9}, {191, 20}, {7, 1}, {0, 34}},
};

} // namespace

TEST_SUITE_BEGIN("kernels");

TEST_CASE("rows: every kind of job, bit for bit") {
    Random random(731);
    for (const JobCase &c : kJobs) {
        CAPTURE(std::string(c.name));
        for (const Spans &spans : kSpansOf) {
            const int n_tokens = token_count(spans);
            CAPTURE(n_tokens);
            check_jobs(random, {c}, spans, 0, n_tokens, n_tokens % 2 ? Values::kNormal : Values::kUneven);
            if (n_tokens > 2) check_jobs(random, {c}, spans, 2, n_tokens - 2, Values::kNormal);
        }
    }
}

TEST_CASE("rows: values at the ends of what the formats hold") {
    Random random(732);
    const Spans spans = {{0, 3}, {2, 4}};
    for (const JobCase &c : kJobs) {
        CAPTURE(std::string(c.name));
        for (const Values values : {Values::kTiny, Values::kHuge, Values::kZero, Values::kSpecial}) {
            CAPTURE(static_cast<int>(values));
            check_jobs(random, {c}, spans, 1, 6, values);
        }
    }
}

TEST_CASE("rows: nothing is read or written for places without a token") {
    Random random(739);
    for (const JobCase &c : kJobs) {
        CAPTURE(std::string(c.name));
        check_jobs(random, {c}, {{0, 1}}, 0, 3, Values::kNormal);
        check_jobs(random, {c}, {{63, 2}, {14, 3}}, 2, 5, Values::kUneven);
        check_jobs(random, {c}, {}, 0, 2, Values::kNormal); // no token at all
    }
}

TEST_CASE("rows: nothing is launched for no tokens and for no jobs") {
    const auto is_run = [](auto &&launch) {
        simt::take_counts();
        CHECK(launch() == 0);
        return simt::take_counts().n_launches > 0;
    };
    RowsParams p{};
    p.n_jobs = 1;
    p.jobs[0].rows_per_token = p.jobs[0].width = 1;
    CHECK(!is_run([&] { return launch_rows(nullptr, p); }));
    p.n_jobs = 0;
    p.n = 1;
    CHECK(!is_run([&] { return launch_rows(nullptr, p); }));
    CHECK(!is_run([] { return launch_commit_window(nullptr, CommitWindowParams{}); }));
}

// ---- Quantisers, whoever holds a block.

namespace {

struct QuantiseParams {
    const Bf16 *x; // as `to`
    QuantisedRows to;
    std::int32_t lanes; // that have a block
};

// grid (row), block 64
__global__ void quantise(const __grid_constant__ QuantiseParams p) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = static_cast<int>(blockIdx.x);
    const auto x = [&](int i) { return to_f32(simt::load(p.x + std::int64_t{row} * p.to.width + i)); };
    if (p.lanes == 1) {
        for (int block = thread; block < p.to.width / kQuantisedBlock; block += 64)
            quantise_block(p.to, row, block, [&](int i) { return x(block * kQuantisedBlock + i); });
        return;
    }
    const auto with = [&](auto &values) {
        constexpr int kValues = sizeof(values) / sizeof(float);
        for (int first = 0; first < p.to.width; first += 64 * kValues) {
            const int column = first + thread * kValues;
            const bool there = column < p.to.width;
            for (int i = 0; i < kValues; ++i) values[i] = there ? x(column + i) : float_from_bits(0x7fc00000u);
            quantise_lanes(p.to, row, column, values, there);
        }
    };
    float one[1], four[4], eight[8];
    if (p.lanes == 32) with(one);
    if (p.lanes == 8) with(four);
    if (p.lanes == 4) with(eight);
}

} // namespace

TEST_CASE("quantised rows: the bits of lib/numeric, whoever holds a block") {
    Random random(740);
    for (const int width : {32, 96, 544, 2080}) {
        CAPTURE(width);
        std::vector<std::vector<Bf16>> rows;
        for (const Values values : {Values::kNormal, Values::kUneven, Values::kTiny, Values::kHuge, Values::kZero,
                                    Values::kSpecial, Values::kSpecial, Values::kUneven})
            rows.push_back(make_row(random, width, values));
        // Blocks that the two largest and the least scales go with, codes between two, and one infinity or NaN in each
        // place of a block.
        for (const std::uint16_t bits : {0x7f7f, 0x0001, 0xff80, 0x7f80, 0x7fc0, 0xffc1})
            for (int place = 0; place < 32; ++place) {
                rows.emplace_back(at(width), to_bf16(0.0f));
                for (int i = 0; i < width; i += 5)
                    rows.back()[at(i)] = to_bf16(static_cast<float>(random.below(509) - 254) * 0.5f);
                rows.back()[at(place)].bits = rows.back()[at(width - 32 + (place + 7) % 32)].bits = bits;
            }
        std::vector<Bf16> all;
        for (const auto &row : rows) all.insert(all.end(), row.begin(), row.end());
        const Array<Bf16> x(all);
        for (const QuantisedForm form : {QuantisedForm::kFp8, QuantisedForm::kQ8}) {
            CAPTURE(name_of(form));
            for (const int lanes : {1, 4, 8, 32}) {
                CAPTURE(lanes);
                const QuantisedCopy copy(form, static_cast<int>(rows.size()), width);
                const QuantiseParams p{x.data(), copy.rows(), lanes};
                REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (quantise), (simt::Dim3{static_cast<unsigned>(rows.size())}),
                                             (simt::Dim3{64}), 0, p));
                for (std::size_t i = 0; i < rows.size(); ++i) {
                    CAPTURE(i);
                    copy.check(static_cast<int>(i), rows[i]);
                }
            }
        }
    }
}

TEST_CASE("rows: the bytes of a block with a NaN or an infinity") {
    Random random(733);
    for (const RowPacking packing : {RowPacking::kWindow, RowPacking::kCompressed, RowPacking::kIndexKey}) {
        CAPTURE(static_cast<int>(packing));
        for (const int bits : {0x7fc0, 0xffc0, 0x7f80, 0xff80}) {
            CAPTURE(bits);
            const auto tokens = tokens_of({{0, 1}});
            const auto spans = span_rows_of({{0, 1}});
            std::vector<Bf16> row = make_row(random, 96, Values::kNormal);
            row[45] = Bf16{static_cast<std::uint16_t>(bits)};
            const Array<Bf16> rows(row);
            const Array<std::uint8_t> bytes(packed_size(packing, 96));
            RowsParams p{};
            p.jobs[0].packing = packing;
            p.jobs[0].rows = rows.data();
            p.jobs[0].packed = bytes.data();
            p.jobs[0].rows_per_token = 1;
            p.jobs[0].width = 96;
            p.tokens = tokens.data();
            p.spans = spans.data();
            p.n_jobs = p.n = 1;
            REQUIRE_LAUNCHES(launch_rows(nullptr, p));
            CHECK(same_bits(bytes.get(), packed(packing, row)));
        }
    }
}

TEST_CASE("rows: jobs of different widths and counts share a launch") {
    Random random(734);
    const Spans spans = {{63, 3}, {0, 1}, {14, 5}};
    const std::uint64_t seed = simt::seed();
    const auto job = [](const char *name) {
        return *std::find_if(std::begin(kJobs), std::end(kJobs),
                             [&](const JobCase &c) { return std::string(c.name) == name; });
    };
    for (std::uint64_t other = 1; other < 8; ++other) {
        simt::set_seed(other);
        CAPTURE(other);
        check_jobs(random,
                   {job("norm in place"), job("index keys of heads"), job("copy"),
                    job("compressed rows of groups into pages")},
                   spans, 0, 9, Values::kNormal);
        check_jobs(
            random,
            {job("index keys of groups into pages"), job("compressed rows into pages"), job("window row, all at once")},
            spans, 3, 5, Values::kUneven);
    }
    simt::set_seed(seed);
}

// ---- Pooling.

namespace {

// The reference's pooling with the kernels' exponential.
std::vector<Bf16> pooled(const float *kv, const float *gate, int ratio, int width) {
    std::vector<Bf16> row;
    for (int e = 0; e < width; ++e) {
        float max = gate[e];
        for (int r = 1; r < ratio; ++r) max = std::max(max, gate[r * width + e]);
        float sum = 0.0f, value = 0.0f;
        for (int r = 0; r < ratio; ++r) sum += exp_f32(gate[r * width + e] - max);
        for (int r = 0; r < ratio; ++r) value += kv[r * width + e] * (exp_f32(gate[r * width + e] - max) / sum);
        row.push_back(to_bf16(value));
    }
    return row;
}

// Sequences whose groups are pooled over several steps, tile by tile. The yardstick keeps every product.
class Pooling {
public:
    Pooling(Random &random, int ratio, int width, std::vector<std::int64_t> start_pos, bool specials = false)
        : random_(random), ratio_(ratio), width_(width), ends_(std::move(start_pos)), specials_(specials) {
        for (const std::int64_t end : ends_) {
            states_.emplace_back(at(2 * ratio * width));
            products_.emplace_back();
            // What earlier steps left of the group that is incomplete.
            for (std::int64_t pos = 0; pos < end; ++pos) {
                products_.back().push_back(make_products());
                if (pos >= end - end % ratio) put(states_.back(), pos, products_.back().back());
            }
            expected_.push_back(states_.back().get());
        }
    }

    // n_tokens of each sequence, in tiles, of which the last may go beyond them.
    void step(const std::vector<int> &n_tokens, const std::vector<int> &tiles) {
        Spans spans;
        for (std::size_t s = 0; s < ends_.size(); ++s) spans.push_back({ends_[s], n_tokens[s]});
        const int n_places = std::accumulate(tiles.begin(), tiles.end(), 0);
        const auto tokens = padded(tokens_of(spans), n_places - token_count(spans));
        const auto span_rows = span_rows_of(spans);
        for (std::size_t s = 0; s < ends_.size(); ++s) {
            if (n_tokens[s] == 0) continue; // not there: what stands in its tables is nobody's business
            span_rows[s].group_state = states_[s].data();
            for (int i = 0; i < n_tokens[s]; ++i) products_[s].push_back(make_products());
        }
        int first = 0;
        for (const int n : tiles) {
            CAPTURE(first);
            const Array<float> products(at(2 * n * width_));
            for (int i = 0; i < n && tokens[at(first + i)].span != kNoSpan; ++i) {
                const Token token = tokens[at(first + i)];
                const auto &own = products_[at(token.span)][at(token.pos)];
                std::copy(own.begin(), own.end(), products.data() + 2 * i * width_);
            }
            check_pooled(tokens, span_rows, products, first, n);
            keep(tokens, span_rows, products, spans, first, n);
            first += n;
        }
        REQUIRE(first >= token_count(spans));
        for (std::size_t s = 0; s < ends_.size(); ++s) ends_[s] += n_tokens[s];
    }

private:
    std::vector<float> make_products() {
        std::vector<float> values(at(2 * width_));
        for (int e = 0; e < width_; ++e) {
            values[at(e)] = static_cast<float>(random_.normal());
            // Gates as near as a hair and as far as an exponential reaches.
            values[at(width_ + e)] = static_cast<float>(random_.normal() * (e % 4 == 0 ? 60.0 : 1.0));
            if (specials_ && random_.below(8) == 0) {
                const std::uint32_t kSpecials[] = {0x7fc00000u, 0x7f800000u, 0xff800000u};
                values[at(e + width_ * random_.below(2))] = float_from_bits(kSpecials[random_.below(3)]);
            }
        }
        return values;
    }
    template <class State> void put(State &state, std::int64_t pos, const std::vector<float> &products) {
        for (int which = 0; which < 2; ++which)
            for (int e = 0; e < width_; ++e)
                state[at((which * ratio_ + pos % ratio_) * width_ + e)] = products[at(which * width_ + e)];
    }

    void check_pooled(const Array<Token> &tokens, const Array<SpanRows> &span_rows, const Array<float> &products,
                      int first, int n) {
        const Array<float> norm = make_norm(random_, width_);
        const Array<Bf16> plain(at(n * width_)), normed(at(n * width_));
        RowsParams p{};
        for (int j = 0; j < 2; ++j) {
            RowJob &job = p.jobs[j];
            job.source = RowSource::kPool;
            job.products = products.data();
            job.norm = j ? norm.data() : nullptr;
            job.out = (j ? normed : plain).data();
            job.stride_out = width_;
            job.rows_per_token = 1;
            job.width = width_;
            job.ratio = ratio_;
            job.eps = kEps;
        }
        p.tokens = tokens.data();
        p.spans = span_rows.data();
        p.n_jobs = 2;
        p.first = first;
        p.n = n;
        REQUIRE_LAUNCHES(launch_rows(nullptr, p));
        for (int i = 0; i < n; ++i) {
            CAPTURE(i);
            const Token token = tokens[at(first + i)];
            const auto got = plain.get(at(i * width_), at(width_));
            const auto got_normed = normed.get(at(i * width_), at(width_));
            if (token.span == kNoSpan || (token.pos + 1) % ratio_ != 0) {
                CHECK(same_bits(got, std::vector<Bf16>(at(width_), Bf16{0xffff})));
                CHECK(same_bits(got_normed, std::vector<Bf16>(at(width_), Bf16{0xffff})));
                continue;
            }
            std::vector<float> kv(at(ratio_ * width_)), gate(kv.size());
            for (int r = 0; r < ratio_; ++r) {
                const auto &source = products_[at(token.span)][at(token.pos - ratio_ + 1 + r)];
                std::copy_n(source.data(), width_, kv.data() + r * width_);
                std::copy_n(source.data() + width_, width_, gate.data() + r * width_);
            }
            std::vector<Bf16> expected = pooled(kv.data(), gate.data(), ratio_, width_);
            CHECK(same_bits(got, expected));
            if (!specials_) check_reference(got, kv, gate);
            reference::rms_norm(expected.data(), width_, norm.data(), kEps);
            CHECK(same_bits(got_normed, expected));
            ++n_pooled;
        }
    }

    // Exponentials differ by 1.6 units in the last place from the reference's, weights by twice that and the roundings
    // of sum and quotient, 2^-19 in all with room to spare; then both are rounded to bf16, to neighbours at most.
    void check_reference(const std::vector<Bf16> &got, const std::vector<float> &kv, const std::vector<float> &gate) {
        std::vector<Bf16> row(at(width_));
        reference::pool_group(kv.data(), gate.data(), ratio_, width_, row.data());
        for (int e = 0; e < width_; ++e) {
            double magnitudes = 0.0;
            for (int r = 0; r < ratio_; ++r) magnitudes += std::fabs(double{kv[at(r * width_ + e)]});
            const double expected = double{to_f32(row[at(e)])};
            CHECK(std::fabs(double{to_f32(got[at(e)])} - expected) <=
                  0x1p-19 * magnitudes + 0x1p-7 * std::fabs(expected));
        }
    }

    // In a launch of their own, or beside a job of other rows.
    void keep(const Array<Token> &tokens, const Array<SpanRows> &span_rows, const Array<float> &products,
              const Spans &spans, int first, int n) {
        const bool is_alone = n % 2 == 0;
        const Array<Bf16> others(is_alone ? 0 : at(3 * n * 5)), copied(others.size());
        std::vector<Bf16> expected;
        for (std::size_t i = 0; i < others.size(); ++i) {
            const bool is_there = tokens[at(first) + i / 15].span != kNoSpan;
            if (is_there) others[i] = to_bf16(static_cast<float>(random_.normal()));
            expected.push_back(is_there ? others[i] : Bf16{0xffff});
        }
        RowsParams p{};
        RowJob &state = p.jobs[is_alone ? 0 : 1];
        state.source = RowSource::kState;
        state.products = products.data();
        state.rows_per_token = 1;
        state.width = width_;
        state.ratio = ratio_;
        if (!is_alone) {
            p.jobs[0].rows = others.data();
            p.jobs[0].out = copied.data();
            p.jobs[0].stride_rows = p.jobs[0].stride_out = 15;
            p.jobs[0].rows_per_token = 3;
            p.jobs[0].width = 5;
        }
        p.tokens = tokens.data();
        p.spans = span_rows.data();
        p.n_jobs = is_alone ? 1 : 2;
        p.first = first;
        p.n = n;
        REQUIRE_LAUNCHES(launch_rows(nullptr, p));
        CHECK(same_bits(copied.get(), expected));
        for (int i = 0; i < n && tokens[at(first + i)].span != kNoSpan; ++i) {
            const Token token = tokens[at(first + i)];
            const Span &span = spans[at(token.span)];
            const std::int64_t last_pos = token.pos - token.pos % ratio_ + ratio_ - 1;
            const bool is_complete = last_pos < span.end_pos() && first + i + last_pos - token.pos < first + n;
            if (!is_complete) put(expected_[at(token.span)], token.pos, products_[at(token.span)][at(token.pos)]);
        }
        for (std::size_t s = 0; s < states_.size(); ++s) CHECK(same_bits(states_[s].get(), expected_[s]));
    }

    Random &random_;
    int ratio_, width_;
    std::vector<std::int64_t> ends_;
    bool specials_;
    std::vector<Array<float>> states_;
    std::vector<std::vector<float>> expected_;              // group states
    std::vector<std::vector<std::vector<float>>> products_; // by sequence and position

public:
    int n_pooled = 0;
};

} // namespace

TEST_CASE("rows: groups are pooled wherever steps and tiles cut them") {
    Random random(735);
    for (const int ratio : {2, 3, 4, 7}) {
        CAPTURE(ratio);
        for (const int width : {32, 130, 512}) {
            CAPTURE(width);
            Pooling pooling(random, ratio, width, {0, 1, 5, 63});
            pooling.step({1, 1, 1, 1}, {4});
            pooling.step({3, 0, 7, 2}, {12});
            pooling.step({5, 2, 1, 8}, {1, 3, 5, 7});
            pooling.step({1, 9, 0, 6}, std::vector<int>(16, 1));
            pooling.step({1, 1, 1, 1}, {2, 2});
            pooling.step({2 * ratio, ratio, 1, 3}, {ratio, 2 * ratio + 4});
            CHECK(pooling.n_pooled > 40 / ratio);
        }
    }
}

TEST_CASE("rows: groups are pooled and kept where the last tile goes beyond the step") {
    Random random(741);
    for (const int ratio : {2, 3, 7}) {
        CAPTURE(ratio);
        Pooling pooling(random, ratio, 130, {0, 1, 5});
        pooling.step({1, 1, 1}, {16});
        pooling.step({4, 0, 1}, {8});
        pooling.step({0, 3, 9}, {7, 7, 7});
        pooling.step({0, 1, 0}, {4});
        pooling.step({ratio, 2, ratio}, {2 * ratio, 5});
        CHECK(pooling.n_pooled > 0);
    }
}

TEST_CASE("rows: pooling of 64 tokens, and in any order of blocks") {
    Random random(736);
    const std::uint64_t seed = simt::seed();
    for (std::uint64_t other = 1; other < 4; ++other) {
        simt::set_seed(other);
        CAPTURE(other);
        Pooling pooling(random, 4, 128, {2, 0});
        pooling.step({63, 1}, {64});
        pooling.step({31, 33}, {30, 34});
        CHECK(pooling.n_pooled == 32);
    }
    simt::set_seed(seed);
}

TEST_CASE("rows: NaN and infinities among products reach their own values only") {
    Random random(737);
    for (const int ratio : {2, 4}) {
        Pooling pooling(random, ratio, 64, {0, 3}, true);
        pooling.step({9, 6}, {15});
        pooling.step({4, 5}, {4, 5});
    }
}

// ---- The ring.

TEST_CASE("commit window: each span's last rows stand in their slots, and nothing else is written") {
    Random random(738);
    const Spans kSpans[] = {
        {{0, 1}}, {{0, 16}}, {{3, 3}}, {{127, 2}, {128, 1}, {0, 5}}, {{1000, 64}}, {{5, 7}, {2, 1}, {63, 20}, {0, 30}},
    };
    for (const Spans &spans : kSpans) {
        const int n_tokens = token_count(spans);
        CAPTURE(n_tokens);
        for (const int window_size : {1, 4, 7, 64, 100, 128}) {
            CAPTURE(window_size);
            for (const std::size_t row_bytes :
                 {window_row_bytes(32), window_row_bytes(96), window_row_bytes(512), window_row_bytes(128)}) {
                CAPTURE(row_bytes);
                const int n_padding = window_size % 4;
                const auto tokens = padded(tokens_of(spans), n_padding);
                const auto span_rows = span_rows_of(spans);
                std::vector<Pages> rings;
                std::vector<std::vector<std::vector<std::uint8_t>>> expected;
                for (std::size_t s = 0; s < spans.size(); ++s) {
                    rings.emplace_back(window_size, row_bytes);
                    span_rows[s].window = rings.back().table();
                    expected.emplace_back(at(window_size), std::vector<std::uint8_t>(row_bytes, 0xff));
                }
                const Array<std::uint8_t> rows(at(n_tokens) * row_bytes);
                for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = random.byte();
                for (int i = 0; i < n_tokens; ++i)
                    expected[at(tokens[at(i)].span)][at(tokens[at(i)].pos % window_size)] =
                        rows.get(at(i) * row_bytes, row_bytes);
                CommitWindowParams p{};
                p.window_new = rows.data();
                p.tokens = tokens.data();
                p.spans = span_rows.data();
                p.n_tokens = n_tokens + n_padding;
                p.window_size = window_size;
                p.row_bytes = static_cast<std::int32_t>(row_bytes);
                REQUIRE_LAUNCHES(launch_commit_window(nullptr, p));
                for (std::size_t s = 0; s < spans.size(); ++s)
                    for (int slot = 0; slot < window_size; ++slot) {
                        CAPTURE(slot);
                        const std::uint8_t *row = rings[s].row(slot);
                        CHECK(std::vector<std::uint8_t>(row, row + row_bytes) == expected[s][at(slot)]);
                    }
            }
        }
    }
}

TEST_SUITE_END();
