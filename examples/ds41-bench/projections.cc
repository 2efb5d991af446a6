#include "projections.h"

#include "noise.h"
#include "same.h"

#include "numeric/rows.h"

#include <algorithm>
#include <cmath>

namespace bench {

using namespace ds41;

namespace {

size_t size_of(int64_t n) {
    return static_cast<size_t>(n);
}

std::vector<Bf16> bf16_noise(int64_t n, uint64_t seed) {
    std::vector<Bf16> values(size_of(n));
    Noise(seed).fill<uint16_t>(values.data(), values.size(), kBf16Keep, kBf16Set);
    return values;
}

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

} // namespace

Tokens::Tokens(const Config &config, int32_t n)
    : n(n), x(bf16_noise(n * int64_t{config.dim}, 1)), o(bf16_noise(n * config.q_width(), 2)),
      qr(size_of(n * int64_t{config.q_lora_rank})), q(size_of(n * config.q_width())),
      out(size_of(n * int64_t{config.dim})), config_(config), rope_(RopeTable::plain_of(config)), tokens_(size_of(n)),
      window_(size_of(n) * window_row_bytes(config.head_dim)) {
    span_.n_tokens = n;
    span_.window.row_bytes = window_row_bytes(config.head_dim);
}

Tokens Tokens::one_of(const Tokens &all, int32_t row) {
    Tokens one(all.config_, 1);
    std::copy_n(all.x.begin() + row * int64_t{all.config_.dim}, one.x.size(), one.x.begin());
    std::copy_n(all.o.begin() + row * all.config_.q_width(), one.o.size(), one.o.begin());
    return one;
}

std::unique_ptr<Stages> Tokens::stages(const Backend &backend, int threads) {
    n_tile_ = std::min(n, backend.n_tile());
    StageOptions options;
    options.n_threads = threads;
    auto stages = backend.create_stages(options);
    StageSizes sizes;
    sizes.n_tile_tokens = n_tile_;
    sizes.n_window_rows = config_.window_size;
    stages->prepare(config_, sizes);
    return stages;
}

void Tokens::stand_at_zero() {
    tokens_.assign(tokens_.size(), {0, 0});
}

void Tokens::stand_at(int64_t first) {
    for (TokenView &token : tokens_) token = {0, first++};
}

void Tokens::run(Stages &stages, const LayerWeights &weights) {
    const LayerView layer = {kLayer, &config_, &config_.role(kLayer), &weights, &rope_, {&span_, tokens_.data(), 1, n}};
    for (Tile tile = {0, 0}; tile.first < n; tile.first += tile.n) {
        tile.n = std::min(n_tile_, n - tile.first);
        const int64_t first = tile.first;
        stages.project({layer, tile, x.data(), qr.data() + first * config_.q_lora_rank,
                        q.data() + first * config_.q_width(), window_.data()});
        stages.output({layer, tile, o.data() + first * config_.q_width(), out.data()});
    }
}

std::vector<float> Tokens::window_values() const {
    std::vector<Bf16> values(size_of(n * int64_t{config_.head_dim}));
    for (int32_t i = 0; i < n; ++i)
        unpack_window_row(window_.data() + size_of(i) * window_row_bytes(config_.head_dim), config_.head_dim,
                          values.data() + i * int64_t{config_.head_dim});
    return widened(values);
}

const std::byte *Product::data(const LayerWeights &weights) const {
    const Matrix &of = weights.*matrix;
    return reinterpret_cast<const std::byte *>(of.data) + size_of(group * rows) * weight_row_bytes(of.dtype, of.cols);
}

BareProducts::BareProducts(const Config &config, const Tokens &ours)
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

void BareProducts::hand_on_groups() {
    for (size_t p = 0; p < products.size(); ++p)
        for (int64_t i = 0; products[p].input == Product::kO && i < n_; ++i)
            for (int64_t e = 0; e < products[p].rows; ++e)
                inputs.back()[size_of(i * config_.o_lora_width() + products[p].group * products[p].rows + e)] =
                    to_bf16(outputs[p][size_of(i * products[p].rows + e)]);
}

/// Norms and packing as the stage `project` does them, with weights of 1.
void BareProducts::must_match(const std::string &who, const Tokens &ours) const {
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

std::vector<float> BareProducts::normed(std::span<const float> values, int64_t width) const {
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

uint64_t BareProducts::n_values() const {
    uint64_t sum = 0;
    for (const Product &product : products) sum += static_cast<uint64_t>(product.rows * product.cols);
    return sum;
}

} // namespace bench
