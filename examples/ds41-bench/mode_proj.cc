// Modes `proj` and `prefill`: the five projections of one layer, as the library's stages `project` and `output` do them
// (with their norms, rotations and packing), beside the bare products of others. Matrices are rotated: see memory.h.
#include "modes.h"
#include "noise.h"
#include "peers.h"
#include "plain_loops.h"
#include "plain_read.h"
#include "same.h"
#include "step_model.h"

#include "backend/backend.h"
#include "numeric/rows.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <set>
#include <thread>

namespace bench {

using namespace ds41;

namespace {

constexpr int kLayer = 0;         // nothing but the window: all layers have these five matrices
constexpr size_t kMaxCopies = 64; // more than full sizes take
constexpr int64_t kPos = 4096;    // of the first token, when it is timed

std::vector<Bf16> bf16_noise(int64_t n, uint64_t seed) {
    std::vector<Bf16> values(static_cast<size_t>(n));
    Noise(seed).fill<uint16_t>(values.data(), values.size(), kBf16Keep, kBf16Set);
    return values;
}

size_t size_of(int64_t n) {
    return static_cast<size_t>(n);
}

/// Tokens of one sequence with what goes into and comes out of the two stages.
class Tokens {
public:
    Tokens(const Config &config, int32_t n)
        : n(n), x(bf16_noise(n * int64_t{config.dim}, 1)), o(bf16_noise(n * config.q_width(), 2)),
          qr(size_of(n * int64_t{config.q_lora_rank})), q(size_of(n * config.q_width())),
          out(size_of(n * int64_t{config.dim})), window(size_of(n) * window_row_bytes(config.head_dim)),
          config_(config), rope_(RopeTable::plain_of(config)), tokens_(size_of(n)) {
        span_.n_tokens = n;
        span_.window.row_bytes = window_row_bytes(config.head_dim);
    }

    /// The one token that stands at a row of others.
    static Tokens one_of(const Tokens &all, int32_t row) {
        Tokens one(all.config_, 1);
        std::copy_n(all.x.begin() + row * int64_t{all.config_.dim}, one.x.size(), one.x.begin());
        std::copy_n(all.o.begin() + row * all.config_.q_width(), one.o.size(), one.o.begin());
        return one;
    }

    /// Stages with room for them.
    std::unique_ptr<Stages> stages(const Backend &backend, int threads) {
        n_tile_ = std::min(n, backend.n_tile);
        StageOptions options;
        options.n_threads = threads;
        auto stages = backend.create_stages(options);
        StageSizes sizes;
        sizes.n_tile_tokens = n_tile_;
        sizes.n_window_rows = config_.window_size;
        stages->prepare(config_, sizes);
        return stages;
    }

    /// All at 0, where a rotation changes nothing: what others compute can then be compared.
    void stand_at_zero() { std::fill(tokens_.begin(), tokens_.end(), TokenView{0, 0}); }
    void stand_at(int64_t first) {
        for (TokenView &token : tokens_) token = {0, first++};
    }

    void run(Stages &stages, const LayerWeights &weights) {
        const LayerView layer = {kLayer,   &config_, &config_.role(kLayer),
                                 &weights, &rope_,   {&span_, tokens_.data(), 1, n}};
        for (Tile tile = {0, 0}; tile.first < n; tile.first += tile.n) {
            tile.n = std::min(n_tile_, n - tile.first);
            const int64_t first = tile.first;
            stages.project({layer, tile, x.data(), qr.data() + first * config_.q_lora_rank,
                            q.data() + first * config_.q_width(), window.data()});
            stages.output({layer, tile, o.data() + first * config_.q_width(), out.data()});
        }
    }

    const int32_t n;
    std::vector<Bf16> x, o, qr, q, out;
    std::vector<uint8_t> window;

    std::vector<float> window_values() const {
        std::vector<Bf16> values(size_of(n * int64_t{config_.head_dim}));
        for (int32_t i = 0; i < n; ++i)
            unpack_window_row(window.data() + size_of(i) * window_row_bytes(config_.head_dim), config_.head_dim,
                              values.data() + i * int64_t{config_.head_dim});
        return widened(values);
    }

private:
    const Config &config_;
    RopeTable rope_;
    SpanView span_{};
    std::vector<TokenView> tokens_;
    int32_t n_tile_ = 0;
};

/// One of the products, by its matrix and, of wo_a, its group.
struct Product {
    enum Input { kX, kQr, kO, kGrouped } input;
    const Matrix LayerWeights::*matrix;
    int64_t group, rows, cols;
    int turn; ///< Products of the same turn do not need each other.
};

std::vector<Product> products_of(const Config &c) {
    std::vector<Product> products = {
        {Product::kX, &LayerWeights::wq_a, 0, c.q_lora_rank, c.dim, 0},
        {Product::kX, &LayerWeights::wkv, 0, c.head_dim, c.dim, 0},
        {Product::kQr, &LayerWeights::wq_b, 0, c.q_width(), c.q_lora_rank, 1},
    };
    for (int64_t group = 0; group < c.o_groups; ++group)
        products.push_back({Product::kO, &LayerWeights::wo_a, group, c.o_lora_rank, c.o_group_width(), 2});
    products.push_back({Product::kGrouped, &LayerWeights::wo_b, 0, c.dim, c.o_lora_width(), 3});
    return products;
}

const std::byte *rows_of(const Product &product, const LayerWeights &weights) {
    const Matrix &matrix = weights.*product.matrix;
    return reinterpret_cast<const std::byte *>(matrix.data) +
           size_of(product.group * product.rows) * weight_row_bytes(matrix.dtype, matrix.cols);
}

/// Inputs and outputs of the bare products, each [n, cols] and [n, rows] by itself. Between products stand norms and
/// rotations, which only ours does: the others get the inputs of each from the start.
class BareProducts {
public:
    BareProducts(const Config &config, const Tokens &ours)
        : products(products_of(config)), config_(config), n_(ours.n) {
        for (const Product &product : products) {
            std::vector<Bf16> &in = inputs.emplace_back();
            if (product.input == Product::kX) in = ours.x;
            if (product.input == Product::kQr) in = ours.qr;
            for (int64_t i = 0; product.input == Product::kO && i < n_; ++i) {
                const auto group = ours.o.begin() + i * config.q_width() + product.group * product.cols;
                in.insert(in.end(), group, group + product.cols);
            }
            if (product.input == Product::kGrouped) in = bf16_noise(n_ * product.cols, 3);
            outputs.emplace_back(size_of(n_ * product.rows));
        }
    }

    /// What wo_a gave, in bf16, as wo_b's input.
    void hand_on_groups() {
        for (size_t p = 0; p < products.size(); ++p)
            for (int64_t i = 0; products[p].input == Product::kO && i < n_; ++i)
                for (int64_t e = 0; e < products[p].rows; ++e)
                    inputs.back()[size_of(i * config_.o_lora_width() + products[p].group * products[p].rows + e)] =
                        to_bf16(outputs[p][size_of(i * products[p].rows + e)]);
    }

    /// Norms and packing as the stage `project` does them, with weights of 1.
    void must_match(const std::string &who, const Tokens &ours) const {
        std::vector<float> window;
        const std::vector<float> latents = normed(outputs[1], config_.head_dim);
        std::vector<uint8_t> packed(window_row_bytes(config_.head_dim));
        std::vector<Bf16> row(size_of(config_.head_dim));
        for (int64_t i = 0; i < n_; ++i) {
            for (size_t e = 0; e < row.size(); ++e) row[e] = to_bf16(latents[size_of(i) * row.size() + e]);
            pack_window_row(row.data(), config_.head_dim, packed.data());
            unpack_window_row(packed.data(), config_.head_dim, row.data());
            for (const Bf16 value : row) window.push_back(to_f32(value));
        }
        must_be_same(who + ", wq_a", normed(outputs[0], config_.q_lora_rank), widened(ours.qr), kMostOfBf16);
        must_be_same(who + ", wkv", window, ours.window_values(), kMostOfE4m3);
        must_be_same(who + ", wq_b", outputs[2], widened(ours.q), kMostOfBf16);
        must_be_same(who + ", wo_a and wo_b", outputs.back(), widened(ours.out), kMostOfBf16);
    }

    /// A value next to a border between codes may take the other one: of values up to 4 a distance of 2^-2.
    static constexpr double kMostOfE4m3 = 0.6;

    const std::vector<Product> products;
    std::vector<std::vector<Bf16>> inputs; ///< By product, as are the outputs.
    std::vector<std::vector<float>> outputs;

private:
    std::vector<float> normed(std::span<const float> values, int64_t width) const {
        std::vector<float> result(values.begin(), values.end());
        for (int64_t i = 0; i < n_; ++i) {
            float *row = result.data() + i * width;
            double sum = 0;
            for (int64_t e = 0; e < width; ++e) sum += double{row[e]} * double{row[e]};
            const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + config_.norm_eps);
            for (int64_t e = 0; e < width; ++e) row[e] = static_cast<float>(row[e] * scale);
        }
        return result;
    }

    const Config &config_;
    const int64_t n_;
};

/// The products of a peer, with matrices of its own.
class PeerProducts {
public:
    PeerProducts(const Peer &peer, const BareProducts &bare, const LayerWeights &weights, int32_t n, int threads)
        : peer_(peer) {
        for (size_t p = 0; p < bare.products.size(); ++p) {
            const Product &product = bare.products[p];
            products_.push_back(peer.create({n, product.rows, product.cols}, threads));
            n_bytes_ += (products_.back()->packed_bytes() + 63) / 64 * 64;
            in_.push_back(to_peer(bare.inputs[p]));
            out_.emplace_back(bare.outputs[p].size() * value_bytes());
        }
        const size_t n_copies = std::min(n_rotated_copies(n_bytes_), kMaxCopies);
        arena_.emplace(n_copies * n_bytes_);
        copies_.resize(n_copies);
        for (auto &copy : copies_)
            for (size_t p = 0; p < products_.size(); ++p) {
                copy.push_back(arena_->take(products_[p]->packed_bytes()));
                if (&copy == &copies_[0])
                    products_[p]->pack(reinterpret_cast<const Bf16 *>(rows_of(bare.products[p], weights)),
                                       copy[p].data());
                else
                    std::copy(copies_[0][p].begin(), copies_[0][p].end(), copy[p].begin());
            }
    }

    size_t n_bytes() const { return n_bytes_; } ///< Of all matrices, once.

    void run(uint64_t turn) {
        for (size_t p = 0; p < products_.size(); ++p) run_one(p, turn);
    }

    /// One after the other, with wo_b's input from wo_a.
    void check(BareProducts &bare, const Tokens &ours) {
        for (size_t p = 0; p < products_.size(); ++p) {
            if (p + 1 == products_.size()) {
                bare.hand_on_groups();
                in_[p] = to_peer(bare.inputs[p]);
            }
            run_one(p, copies_.size() - 1);
            bare.outputs[p] = from_peer(out_[p]);
        }
        bare.must_match(peer_.name, ours);
    }

private:
    size_t value_bytes() const { return peer_.takes_f32 ? sizeof(float) : sizeof(Bf16); }

    std::vector<std::byte> to_peer(const std::vector<Bf16> &values) const {
        const auto bytes_of = [](const auto &list) {
            const auto bytes = std::as_bytes(std::span(list));
            return std::vector(bytes.begin(), bytes.end());
        };
        return peer_.takes_f32 ? bytes_of(widened(values)) : bytes_of(values);
    }

    std::vector<float> from_peer(std::span<const std::byte> bytes) const {
        if (!peer_.takes_f32)
            return widened({reinterpret_cast<const Bf16 *>(bytes.data()), bytes.size() / sizeof(Bf16)});
        const auto *values = reinterpret_cast<const float *>(bytes.data());
        return {values, values + bytes.size() / sizeof(float)};
    }

    void run_one(size_t p, uint64_t turn) {
        products_[p]->run(copies_[turn % copies_.size()][p].data(), in_[p].data(), out_[p].data());
    }

    const Peer &peer_;
    size_t n_bytes_ = 0;
    std::vector<std::unique_ptr<PeerProduct>> products_;
    std::vector<std::vector<std::byte>> in_, out_;
    std::optional<Arena> arena_;
    std::vector<std::vector<std::span<std::byte>>> copies_; ///< By copy and product.
};

/// Q2_K by plain_loops.h, a token after the other.
class PlainQ2K {
public:
    PlainQ2K(BareProducts &bare, int32_t n, int threads) : bare_(bare), n_(n), team_(threads) {}

    void run(const LayerWeights &weights) {
        for (int turn = 0; turn <= bare_.products.back().turn; ++turn)
            for (int32_t i = 0; i < n_; ++i) run_turn(turn, i, weights);
    }

    void check(const LayerWeights &weights, const Tokens &ours) {
        run(weights);
        bare_.hand_on_groups();
        run(weights);
        bare_.must_match("the plain loop of Q2_K", ours);
    }

private:
    void run_turn(int turn, int32_t i, const LayerWeights &weights) {
        std::vector<size_t> places;
        for (size_t p = 0; p < bare_.products.size(); ++p)
            if (bare_.products[p].turn == turn) places.push_back(p);
        std::vector<Q8Row> x(bare_.products.size());
        team_.run([&](size_t thread) {
            for (size_t k = thread; k < places.size(); k += team_.n_threads()) {
                const int64_t n = bare_.products[places[k]].cols;
                x[places[k]] = q8_row(bare_.inputs[places[k]].data() + i * n, n);
            }
        });
        team_.run([&](size_t thread) {
            for (const size_t p : places) {
                const Product &product = bare_.products[p];
                const int64_t first = team_.part(product.rows, thread), end = team_.part(product.rows, thread + 1);
                plain_q2_k(rows_of(product, weights) + size_of(first) * weight_row_bytes(DS41_DTYPE_Q2_K, product.cols),
                           end - first, x[p], bare_.outputs[p].data() + i * product.rows + first);
            }
        });
    }

    BareProducts &bare_;
    const int32_t n_;
    Team team_;
};

/// OpenMP's threads and OpenBLAS's keep on spinning for milliseconds after their work; the next contestant shall not
/// have them for neighbours.
void let_threads_sleep() {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

void measure(const char *mode, const std::string &format, int32_t n, const Options &options, Report &report) {
    const Backend &backend = choose_backend("cpu");
    const Config config(step_config(options.scale));
    const ds41_dtype dtype = dtype_of_format(format);

    std::vector<std::unique_ptr<StepWeights>> copies;
    std::vector<LayerWeights> weights;
    do {
        copies.push_back(std::make_unique<StepWeights>(config, backend.memory(), dtype));
        weights.push_back(copies.back()->of(kLayer));
    } while (copies.size() < std::min(n_rotated_copies(copies[0]->matrices_of(kLayer).size()), kMaxCopies));

    Tokens ours(config, n);
    const auto stages = ours.stages(backend, options.threads);
    ours.stand_at_zero();
    ours.run(*stages, weights.back());
    const auto row_of = [&](const auto &values, int32_t row) {
        const auto width = values.size() / size_of(n);
        return widened(std::span(values).subspan(size_of(row) * width, width));
    };
    for (const int32_t row : std::set<int32_t>{0, n - 1}) {
        Tokens right = Tokens::one_of(ours, row);
        right.run(*right.stages(choose_backend("reference"), 1), weights[0]);
        const std::string what = "row " + std::to_string(row) + " of ours, ";
        must_be_same(what + "qr", row_of(ours.qr, row), widened(right.qr), kMostOfBf16);
        must_be_same(what + "q", row_of(ours.q, row), widened(right.q), kMostOfBf16);
        must_be_same(what + "out", row_of(ours.out, row), widened(right.out), kMostOfBf16);
    }

    BareProducts bare(config, ours);
    uint64_t n_values = 0;
    for (const Product &product : bare.products) n_values += static_cast<uint64_t>(product.rows * product.cols);

    Case compared;
    compared.mode = mode;
    compared.name = format + ", " + std::to_string(n) + (n == 1 ? " row" : " rows") +
                    (options.scale > 1 ? ", scale " + std::to_string(options.scale) : "");
    compared.backend = backend.name;
    compared.baseline = "ours";
    const auto add = [&](const std::string &name, uint64_t bytes, uint64_t flops, auto run) -> Contestant & {
        Contestant contestant;
        contestant.name = name;
        contestant.bytes = bytes;
        contestant.flops = flops;
        contestant.threads = options.threads;
        contestant.run = std::move(run);
        return compared.contestants.emplace_back(std::move(contestant));
    };
    const uint64_t n_bytes = copies[0]->matrices_of(kLayer).size(), flops = 2 * static_cast<uint64_t>(n) * n_values;

    PlainReader reader(options.threads);
    compared.floor = "plain read";
    add("plain read", n_bytes, 0,
        [&](uint64_t turn) { reader.read(copies[turn % copies.size()]->matrices_of(kLayer)); });
    add("ours", n_bytes, flops, [&](uint64_t turn) { ours.run(*stages, weights[turn % weights.size()]); });

    std::optional<PlainQ2K> plain;
    if (dtype == DS41_DTYPE_Q2_K && n == 1) {
        plain.emplace(bare, n, options.threads);
        plain->check(weights[0], ours);
        add("plain loop", n_bytes, flops, [&](uint64_t turn) { plain->run(weights[turn % weights.size()]); });
    }
    std::vector<std::unique_ptr<PeerProducts>> peers;
    for (const Peer &peer : all_peers()) {
        if (dtype != DS41_DTYPE_BF16) break; // none of them has the other formats
        if (const std::string why_not = peer.why_not(); !why_not.empty()) {
            report.skip(mode, compared.name + ", " + peer.name, why_not);
            continue;
        }
        peers.push_back(std::make_unique<PeerProducts>(peer, bare, weights[0], n, options.threads));
        peers.back()->check(bare, ours);
        add(peer.name, peers.back()->n_bytes(), flops, [products = peers.back().get()](uint64_t turn) {
            products->run(turn);
        }).after = let_threads_sleep;
        compared.note += (compared.note.empty() ? "" : "; ") + std::string(peer.name) + ": " + peer.about();
    }
    ours.stand_at(kPos);
    report.add(compared, run_case(compared, options.limits));
}

} // namespace

void run_proj(const Options &options, Report &report) {
    for (const std::string &format : options.formats)
        for (const int64_t n : options.rows) measure("proj", format, static_cast<int32_t>(n), options, report);
}

void run_prefill(const Options &options, Report &report) {
    for (const std::string &format : options.formats)
        for (const int64_t n : options.rows) measure("prefill", format, static_cast<int32_t>(n), options, report);
}

} // namespace bench
