// Mode `index`: the stage `select` for one token, which scores all keys and chooses the best, beside scores alone of
// the same keys in bf16; and the choice alone beside std::nth_element.
#include "cached_rows.h"
#include "modes.h"
#include "plain_loops.h"
#include "plain_read.h"
#include "same.h"
#include "step_model.h"

#include "backend/backend.h"
#include "backend/cpu/rank.h"
#include "numeric/rows.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>

namespace bench {

using namespace ds41;

namespace {

constexpr size_t kMaxCopies = 256; // more than 64K keys take

size_t size_of(int64_t n) {
    return static_cast<size_t>(n);
}

/// A layer of ratio 1 that scores all its keys: there are no candidates.
ds41_config config_of(int32_t scale) {
    ds41_config config = step_config(scale);
    config.candidate_source_layer = -1;
    config.candidate_topk_blocks = config.candidate_block_size = 0;
    return config;
}

int layer_of(const Config &config) {
    for (int layer = 0; layer < config.n_layers_total(); ++layer)
        if (config.role(layer).ratio == 1 && config.role(layer).writes_index_keys()) return layer;
    throw std::logic_error("no layer of ratio 1 has index keys");
}

class Scoring {
public:
    Scoring(const ds41_config &raw, int64_t n_keys, int threads)
        : config(raw), n_keys(n_keys), layer_(layer_of(config)), rope_(RopeTable::compressed_of(config)),
          team_(threads) {
        const auto n = size_of(config.index_head_dim);
        const RowForm form = {index_key_row_bytes(config.index_head_dim), n / 2, 0xff, 0, kUe8m0One};
        const size_t copy_bytes = CachedRows::n_bytes(form, n_keys), plain_bytes = size_of(n_keys) * n * sizeof(Bf16);
        const size_t n_copies = std::min(n_rotated_copies(copy_bytes), kMaxCopies),
                     n_plain = std::min(n_rotated_copies(plain_bytes), kMaxCopies);
        arena_ = std::make_unique<Arena>(n_copies * copy_bytes + n_plain * ((plain_bytes + 63) / 64 * 64));
        for (size_t i = 0; i < n_copies; ++i) keys.emplace_back(*arena_, form, n_keys, 1);
        for (size_t i = 0; i < n_plain; ++i) {
            const auto copy = arena_->take(plain_bytes);
            auto *values = reinterpret_cast<Bf16 *>(copy.data());
            if (i > 0)
                std::copy_n(plain_keys[0], size_of(n_keys) * n, values);
            else
                for (int64_t key = 0; key < n_keys; ++key)
                    unpack_index_key_row(keys[0].view().row(key), config.index_head_dim, values + size_of(key) * n);
            plain_keys.push_back(values);
        }
        Noise noise(9);
        iq_.resize(size_of(config.index_n_heads) * form.row_bytes);
        fill_rows(noise, iq_.data(), size_of(config.index_n_heads), form.row_bytes, form.n_codes, form.keep, form.set,
                  form.scale);
        weights_.resize(size_of(config.index_n_heads));
        noise.fill<uint16_t>(weights_.data(), weights_.size(), kBf16Keep, kBf16Set);
        std::vector<Bf16> values(n);
        for (int h = 0; h < config.index_n_heads; ++h) {
            unpack_index_key_row(iq_.data() + size_of(h) * form.row_bytes, config.index_head_dim, values.data());
            for (const Bf16 value : values) plain_queries_.push_back(to_f32(value));
        }
        plain_weights_ = widened(weights_);
        plain_weights_.resize((plain_weights_.size() + 7) / 8 * 8); // heads that count nothing
        plain_queries_.resize(plain_weights_.size() * n);
        groups_.resize(size_of(std::min<int64_t>(n_keys, config.index_topk)));
        scores.resize(size_of(n_keys));
    }

    std::unique_ptr<Stages> stages(const Backend &backend, int threads) const {
        StageOptions options;
        options.n_threads = threads;
        auto stages = backend.create_stages(options);
        StageSizes sizes;
        sizes.n_tile_tokens = 1;
        sizes.n_groups = n_keys;
        sizes.n_group_slots = static_cast<int32_t>(groups_.size());
        sizes.n_window_rows = config.window_size;
        stages->prepare(config, sizes);
        return stages;
    }

    /// With scores where they are asked for, which takes time.
    void run(Stages &stages, const CachedRows &of, float *scores_out = nullptr) {
        SpanView span{};
        span.n_tokens = 1;
        span.start_pos = n_keys - 1;
        span.index_keys = of.view();
        span.n_rank_groups = n_keys;
        const TokenView token = {0, n_keys - 1};
        const LayerWeights none;
        SelectArgs args{};
        args.layer = {layer_, &config, &config.role(layer_), &none, &rope_, {&span, &token, 1, 1}};
        args.tile = {0, 1};
        args.iq = iq_.data();
        args.weights = weights_.data();
        args.groups = groups_.data();
        args.n_group_slots = static_cast<int32_t>(groups_.size());
        args.rule = DS41_TOPK_STABLE;
        args.tap_scores = scores_out ? &scores_out : nullptr;
        stages.select(args);
    }

    void run_plain(const Bf16 *of) {
        team_.run([&](size_t thread) {
            const int64_t first = team_.part(n_keys, thread), end = team_.part(n_keys, thread + 1);
            plain_scores(plain_queries_.data(), plain_weights_.data(), static_cast<int64_t>(plain_weights_.size()),
                         of + first * config.index_head_dim, end - first, config.index_head_dim, scores.data() + first);
        });
    }

    const Config config;
    const int64_t n_keys;
    std::vector<CachedRows> keys;
    std::vector<Bf16 *> plain_keys;
    std::vector<float> scores; ///< Of run_plain().

private:
    const int layer_;
    RopeTable rope_;
    Team team_;
    std::unique_ptr<Arena> arena_;
    std::vector<uint8_t> iq_;
    std::vector<Bf16> weights_;
    std::vector<float> plain_queries_, plain_weights_;
    std::vector<int32_t> groups_;
};

std::string in_thousands(int64_t n) {
    return n % 1024 == 0 ? std::to_string(n / 1024) + "K" : std::to_string(n);
}

void measure_scores(int64_t n_keys, const Options &options, Report &report) {
    const Backend &backend = choose_backend("cpu");
    Scoring scoring(config_of(options.scale), n_keys, options.threads);
    const Config &config = scoring.config;
    const auto stages = scoring.stages(backend, options.threads);

    std::vector<float> right(size_of(n_keys));
    scoring.run(*stages, scoring.keys.back(), right.data());
    scoring.run_plain(scoring.plain_keys.back());
    must_be_same("index, scores of bf16 keys", scoring.scores, right, kMostOfBf16);

    Case compared;
    compared.mode = "index";
    compared.name = in_thousands(n_keys) + " keys of " + std::to_string(config.index_head_dim) + ", " +
                    std::to_string(config.index_n_heads) + " heads";
    compared.backend = backend.name;
    compared.floor = "plain read";
    compared.baseline = "scores of bf16 keys";
    compared.note = "Ours chooses the best, too.";
    const auto n_values = static_cast<uint64_t>(n_keys) * static_cast<uint64_t>(config.index_head_dim);
    const auto add = [&](const char *name, uint64_t bytes, uint64_t flops, auto run) {
        Contestant contestant;
        contestant.name = name;
        contestant.bytes = bytes;
        contestant.flops = flops;
        contestant.threads = options.threads;
        contestant.run = std::move(run);
        compared.contestants.push_back(std::move(contestant));
    };
    const uint64_t n_bytes = scoring.keys[0].bytes().size();
    const uint64_t flops = 2 * n_values * static_cast<uint64_t>(config.index_n_heads);
    PlainReader reader(options.threads);
    add("plain read", n_bytes, 0,
        [&](uint64_t turn) { reader.read(scoring.keys[turn % scoring.keys.size()].bytes()); });
    add("scores of bf16 keys", n_values * sizeof(Bf16), flops,
        [&](uint64_t turn) { scoring.run_plain(scoring.plain_keys[turn % scoring.plain_keys.size()]); });
    add("ours", n_bytes, flops, [&](uint64_t turn) { scoring.run(*stages, scoring.keys[turn % scoring.keys.size()]); });
    report.add(compared, run_case(compared, options.limits));
}

/// The k best, ascending, by the standard library. Among words that order scores as they are ordered, and equal ones
/// by number: faster than numbers that are compared by what they stand for.
void choose_plainly(const std::vector<uint16_t> &scores, size_t k, std::vector<uint64_t> &words,
                    std::vector<int32_t> &best) {
    words.resize(scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
        const auto order = static_cast<uint64_t>(cpu::order_of(scores[i]) + 0x8000);
        words[i] = order << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(i));
    }
    const auto cut = words.begin() + static_cast<ptrdiff_t>(k);
    if (cut != words.end()) std::nth_element(words.begin(), cut, words.end(), std::greater<>());
    best.resize(k);
    std::transform(words.begin(), cut, best.begin(),
                   [](uint64_t word) { return static_cast<int32_t>(~static_cast<uint32_t>(word)); });
    std::sort(best.begin(), best.end());
}

void measure_choice(int64_t n, const Options &options, Report &report) {
    constexpr size_t kLists = 64; // no branch is learnt by heart
    const size_t k = size_of(std::min<int64_t>(n, step_config(options.scale).index_topk));
    std::vector<std::vector<uint16_t>> lists(kLists, std::vector<uint16_t>(size_of(n)));
    Noise noise(11);
    for (auto &list : lists)
        for (uint16_t &score : list) { // of two signs, and more of them around 0
            float sum = 0;
            for (int i = 0; i < 4; ++i) sum += static_cast<float>(static_cast<int32_t>(noise.next() >> 32));
            score = to_bf16(sum * 0x1p-30f).bits;
        }

    std::vector<int16_t> scratch(size_of(cpu::stretches_of(n)));
    std::vector<int32_t> ours(k), plain;
    std::vector<uint64_t> words;
    const auto choose = [&](const std::vector<uint16_t> &list) {
        return cpu::best_of(list.data(), n, static_cast<int64_t>(k), scratch.data(), ours.data());
    };
    for (const auto &list : lists) {
        choose_plainly(list, k, words, plain);
        if (choose(list) != static_cast<int64_t>(k) || ours != plain)
            throw std::runtime_error("index: the best " + std::to_string(k) + " are not those of std::nth_element");
    }

    Case compared;
    compared.mode = "index";
    compared.name = "best " + std::to_string(k) + " of " + in_thousands(n) + " scores";
    compared.backend = "cpu";
    compared.floor = "plain read";
    compared.baseline = "std::nth_element";
    compared.note = "Scores lie in a cache, as scoring leaves them.";
    const auto add = [&](const char *name, auto run) {
        Contestant contestant;
        contestant.name = name;
        contestant.bytes = size_of(n) * sizeof(uint16_t);
        contestant.cpu_bound = true;
        contestant.run = [run, &lists](uint64_t turn) { run(lists[turn % kLists]); };
        compared.contestants.push_back(std::move(contestant));
    };
    PlainReader reader(1);
    add("plain read", [&](const std::vector<uint16_t> &list) { reader.read(std::as_bytes(std::span(list))); });
    add("std::nth_element", [&](const std::vector<uint16_t> &list) { choose_plainly(list, k, words, plain); });
    add("ours", [&](const std::vector<uint16_t> &list) { choose(list); });
    report.add(compared, run_case(compared, options.limits));
}

} // namespace

void run_index(const Options &options, Report &report) {
    for (const int64_t n : options.contexts) measure_scores(n, options, report);
    for (const int64_t n : options.contexts) measure_choice(n, options, report);
}

} // namespace bench
