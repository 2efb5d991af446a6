// Modes `proj` and `prefill`: the five projections of one layer, as the library's stages `project` and `output` do them
// (with their norms, rotations and packing), beside the bare products of others. Matrices are rotated: see memory.h.
#include "modes.h"
#include "peers.h"
#include "placement.h"
#include "plain_loops.h"
#include "plain_read.h"
#include "probe.h"
#include "projections.h"
#include "same.h"
#include "step_model.h"

#include "backend/backend.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <thread>

namespace bench {

using namespace ds41;

namespace {

constexpr size_t kMaxCopies = 64; // more than full sizes take
constexpr int64_t kPos = 4096;    // of the first token, when it is timed

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
                    products_[p]->pack(reinterpret_cast<const Bf16 *>(bare.products[p].data(weights)), copy[p].data());
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
                plain_q2_k(product.data(weights) +
                               static_cast<size_t>(first) * weight_row_bytes(DS41_DTYPE_Q2_K, product.cols),
                           end - first, x[p], bare_.outputs[p].data() + i * product.rows + first);
            }
        });
    }

    BareProducts &bare_;
    const int32_t n_;
    Team team_;
};

/// OpenMP's threads spin for milliseconds after their work, OpenBLAS's for a tenth of a second; the next contestant
/// shall not have them for neighbours. Returns when the process uses no CPU, or after a second.
void let_threads_sleep() {
    double cpu_s = read_process(Edge::end).cpu_s;
    for (int i = 0; i < 100; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        const double last = cpu_s;
        cpu_s = read_process(Edge::end).cpu_s;
        if (cpu_s - last < 0.0005) return;
    }
}

/// Each library's threads on CPUs of their own.
std::vector<Result> run_in_place(const Case &compared, const Limits &limits) {
    const Placement placement;
    return run_case(compared, limits);
}

void measure(const char *mode, const std::string &format, int32_t n, const Options &options, Report &report) {
    const Backend &backend = choose_backend("cpu");
    const Config config(step_config(options.scale));
    const ds41_dtype dtype = dtype_of_format(format);

    std::vector<std::unique_ptr<StepWeights>> copies;
    std::vector<LayerWeights> weights;
    do {
        copies.push_back(std::make_unique<StepWeights>(config, backend.memory(), dtype));
        weights.push_back(copies.back()->of(Tokens::kLayer));
    } while (copies.size() < std::min(n_rotated_copies(copies[0]->matrices_of(Tokens::kLayer).size()), kMaxCopies));

    Tokens ours(config, n);
    const auto stages = ours.stages(backend, options.threads);
    ours.stand_at_zero();
    ours.run(*stages, weights.back());
    const auto row_of = [&](const auto &values, int32_t row) {
        const auto width = values.size() / static_cast<size_t>(n);
        return std::span(values).subspan(static_cast<size_t>(row) * width, width);
    };
    const std::vector<float> windows = ours.window_values();
    for (const int32_t row : std::set<int32_t>{0, n - 1}) {
        Tokens right = Tokens::one_of(ours, row);
        right.run(*right.stages(choose_backend("reference"), 1), weights[0]);
        const std::string what = "row " + std::to_string(row) + " of ours, ";
        must_be_same(what + "qr", widened(row_of(ours.qr, row)), widened(right.qr), kMostOfBf16);
        must_be_same(what + "q", widened(row_of(ours.q, row)), widened(right.q), kMostOfBf16);
        must_be_same(what + "window", row_of(windows, row), right.window_values(), kMostOfE4m3);
        must_be_same(what + "out", widened(row_of(ours.out, row)), widened(right.out), kMostOfBf16);
    }

    BareProducts bare(config, ours);

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
    const uint64_t n_bytes = copies[0]->matrices_of(Tokens::kLayer).size(),
                   flops = 2 * static_cast<uint64_t>(n) * bare.n_values();

    PlainReader reader(options.threads);
    compared.floor = "plain read";
    add("plain read", n_bytes, 0,
        [&](uint64_t turn) { reader.read(copies[turn % copies.size()]->matrices_of(Tokens::kLayer)); });
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
    reader.read(copies[0]->matrices_of(Tokens::kLayer)); // so that all have their threads
    report.add(compared, run_in_place(compared, options.limits));
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
