// Mode `attend`: the stage of that name for one token, beside a plain loop. Rows are unpacked within the time, by both.
#include "cached_rows.h"
#include "modes.h"
#include "plain_loops.h"
#include "plain_read.h"
#include "same.h"
#include "step_model.h"

#include "backend/backend.h"
#include "numeric/rows.h"

#include <algorithm>
#include <memory>

namespace bench {

using namespace ds41;

namespace {

constexpr int kLayer = 2;          // of those that attend to compressed rows; it is the same in all
constexpr size_t kMaxCopies = 256; // more than 32K tokens take: 64 MB of rows and more

size_t size_of(int64_t n) {
    return static_cast<size_t>(n);
}

/// A sequence whose last token attends.
struct Reader {
    CachedRows window, compressed;
    std::vector<int32_t> groups; ///< Selected, ascending.
};

class Attention {
public:
    Attention(const ds41_config &raw, int64_t context, int threads)
        : config(raw), context_(context), rope_(RopeTable::compressed_of(config)), team_(threads) {
        const LayerRole &role = config.role(kLayer);
        const int64_t n_groups = groups_among(context, role.ratio);
        n_slots_ = static_cast<int32_t>(std::min<int64_t>(n_groups, config.index_topk));
        n_window_ = std::min<int64_t>(context, config.window_size);
        const auto n = size_of(config.head_dim);
        const RowForm window = {window_row_bytes(config.head_dim), n, kE4m3Keep, kE4m3Set, kUe8m0One};
        const RowForm compressed = {compressed_row_bytes(config.head_dim), n / 2, 0xff, 0, kE4m3One};
        const size_t copy_bytes =
            CachedRows::n_bytes(window, config.window_size) + CachedRows::n_bytes(compressed, n_groups);
        const size_t n_copies = std::min(n_rotated_copies(copy_bytes), kMaxCopies);
        arena_ = std::make_unique<Arena>(n_copies * copy_bytes);
        for (size_t i = 0; i < n_copies; ++i) {
            readers.push_back({CachedRows(*arena_, window, config.window_size, 2 * i + 1),
                               CachedRows(*arena_, compressed, n_groups, 2 * i + 2),
                               {}});
            Noise noise(i + 100);
            for (int64_t slot = 0; slot < n_slots_; ++slot) { // one somewhere in each part of the context
                const int64_t first = slot * n_groups / n_slots_, end = (slot + 1) * n_groups / n_slots_;
                readers.back().groups.push_back(
                    static_cast<int32_t>(first + static_cast<int64_t>(noise.next() >> 33) % (end - first)));
            }
        }
        token_ = {0, context - 1};
        q_.resize(size_of(config.q_width()));
        Noise(5).fill<uint16_t>(q_.data(), q_.size(), kBf16Keep, kBf16Set);
        own_row_.resize(window.row_bytes);
        Noise own(6);
        fill_rows(own, own_row_.data(), 1, window.row_bytes, n, window.keep, window.set, window.scale);
        sinks_.assign(size_of(config.n_heads), 1.0f);
        weights_.attn_sink = sinks_.data();
        rows_.resize(size_of(n_rows()) * n);
        scratch_.resize(size_of(threads) * (size_of(n_rows()) + 2 * n));
    }

    std::unique_ptr<Stages> stages(const Backend &backend, int threads) const {
        StageOptions options;
        options.n_threads = threads;
        auto stages = backend.create_stages(options);
        StageSizes sizes;
        sizes.n_tile_tokens = 1;
        sizes.n_groups = groups_among(context_, config.role(kLayer).ratio);
        sizes.n_group_slots = n_slots_;
        sizes.n_window_rows = config.window_size;
        stages->prepare(config, sizes);
        return stages;
    }

    int64_t n_rows() const { return n_window_ + n_slots_; }
    /// That have to be read: rows, those selected by number.
    uint64_t n_bytes() const {
        return size_of(n_window_) * window_row_bytes(config.head_dim) +
               size_of(n_slots_) * (compressed_row_bytes(config.head_dim) + sizeof(int32_t));
    }

    void run(Stages &stages, const Reader &reader, std::vector<Bf16> &o) const {
        SpanView span{};
        span.n_tokens = 1;
        span.start_pos = token_.pos;
        span.window = reader.window.view();
        span.compressed = reader.compressed.view();
        AttendArgs args{};
        args.layer = {kLayer, &config, &config.role(kLayer), &weights_, &rope_, {&span, &token_, 1, 1}};
        args.tile = {0, 1};
        args.q = q_.data();
        args.window_new = own_row_.data();
        args.groups = reader.groups.data();
        args.n_group_slots = n_slots_;
        args.o = o.data();
        stages.attend(args);
    }

    /// Rows, then heads, shared among threads.
    void run_plain(const Reader &reader, std::vector<Bf16> &o) {
        const int64_t n = config.head_dim;
        const RowsView window = reader.window.view(), compressed = reader.compressed.view();
        team_.run([&](size_t thread) {
            for (int64_t r = team_.part(n_rows(), thread); r < team_.part(n_rows(), thread + 1); ++r) {
                float *row = rows_.data() + r * n;
                const int64_t pos = context_ - n_window_ + r;
                if (r >= n_window_)
                    plain_unpack_compressed(compressed.row(reader.groups[size_of(r - n_window_)]), n, row);
                else
                    plain_unpack_window(pos + 1 == context_ ? own_row_.data() : window.row(pos % config.window_size), n,
                                        row);
            }
        });
        team_.run([&](size_t thread) {
            float *q = scratch_.data() + thread * (scratch_.size() / team_.n_threads()), *out = q + n;
            for (int64_t h = team_.part(config.n_heads, thread); h < team_.part(config.n_heads, thread + 1); ++h) {
                for (int64_t e = 0; e < n; ++e) q[e] = to_f32(q_[size_of(h * n + e)]);
                plain_attend(q, rows_.data(), n_rows(), n, config.attention_scale(), sinks_[size_of(h)], out + n, out);
                for (int64_t e = 0; e < n; ++e) o[size_of(h * n + e)] = to_bf16(out[e]);
            }
        });
    }

    const Config config;
    std::vector<Reader> readers;

private:
    const int64_t context_;
    RopeTable rope_;
    Team team_;
    std::unique_ptr<Arena> arena_;
    int64_t n_window_;
    int32_t n_slots_;
    TokenView token_;
    std::vector<Bf16> q_;
    std::vector<uint8_t> own_row_;
    std::vector<float> sinks_, rows_, scratch_;
    LayerWeights weights_;
};

void measure(int64_t context, const Options &options, Report &report) {
    const Backend &backend = choose_backend("cpu");
    Attention attention(step_config(options.scale), context, options.threads);
    const Config &config = attention.config;
    const auto stages = attention.stages(backend, options.threads);
    const std::vector<Reader> &readers = attention.readers;

    std::vector<Bf16> o(size_of(config.q_width())), right = o;
    attention.run(*attention.stages(choose_backend("reference"), 1), readers.back(), right);
    attention.run(*stages, readers.back(), o);
    must_be_same("attend, ours", widened(o), widened(right), kMostOfBf16);
    attention.run_plain(readers.back(), o);
    must_be_same("attend, the plain loop", widened(o), widened(right), kMostOfBf16);

    Case compared;
    compared.mode = "attend";
    compared.name = std::to_string(config.n_heads) + " heads of " + std::to_string(config.head_dim) + ", " +
                    std::to_string(attention.n_rows()) + " rows of a context of " + std::to_string(context);
    compared.backend = backend.name;
    compared.floor = "plain read";
    compared.baseline = "plain loop";
    const auto add = [&](const char *name, uint64_t flops, auto run) {
        Contestant contestant;
        contestant.name = name;
        contestant.bytes = attention.n_bytes();
        contestant.flops = flops;
        contestant.threads = options.threads;
        contestant.run = [run, &readers](uint64_t turn) { run(readers[turn % readers.size()]); };
        compared.contestants.push_back(std::move(contestant));
    };
    PlainReader reader(options.threads);
    const uint64_t flops = 4 * static_cast<uint64_t>(config.q_width() * attention.n_rows()); // two products
    add("plain read", 0, [&](const Reader &each) {
        const auto bytes = each.compressed.bytes();
        reader.read(bytes.first(std::min<size_t>(bytes.size(), attention.n_bytes())));
    });
    add("plain loop", flops, [&](const Reader &each) { attention.run_plain(each, o); });
    add("ours", flops, [&](const Reader &each) { attention.run(*stages, each, o); });
    report.add(compared, run_case(compared, options.limits));
}

} // namespace

void run_attend(const Options &options, Report &report) {
    for (const int64_t context : options.contexts) measure(context, options, report);
}

} // namespace bench
