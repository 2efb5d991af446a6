// What things take: the release's configuration costs nothing until it is used, sequences grow by pages, and the
// estimate is what the objects then report.
#include "support.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <sys/mman.h>
#include <unistd.h>

using namespace api_test;

namespace {

constexpr uint64_t kMiB = uint64_t(1) << 20;

ds41_memory estimate(const ds41_model *model, int64_t n_seqs, int64_t n_positions, int64_t n_tokens) {
    ds41_memory memory;
    ds41_memory_init(&memory, sizeof(memory));
    must(ds41_model_estimate_memory(model, n_seqs, n_positions, n_tokens, &memory));
    return memory;
}

uint64_t of_sequences(const ds41_memory &memory) {
    return memory.window + memory.compressed + memory.index_keys + memory.group_state;
}

uint64_t resident_bytes() {
    std::FILE *file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr) return 0;
    unsigned long pages = 0, resident = 0;
    const int n = std::fscanf(file, "%lu %lu", &pages, &resident);
    std::fclose(file);
    return n == 2 ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// Zeros for the largest matrix; no page of it is ever written, so it takes no memory.
class Zeros {
public:
    explicit Zeros(size_t n_bytes) : n_bytes_(n_bytes) {
        data_ = mmap(nullptr, n_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        REQUIRE(data_ != MAP_FAILED);
    }
    ~Zeros() { munmap(data_, n_bytes_); }
    Zeros(const Zeros &) = delete;
    Zeros &operator=(const Zeros &) = delete;
    void *data() const { return data_; }

private:
    size_t n_bytes_;
    void *data_;
};

// The release with weights that are all zero and all in the same place. A device takes a copy of each: there, matrices
// are as small as they may be, with the release's rows and lists.
TestModel flash_model(const Zeros &zeros) {
    ds41_config config;
    ds41_config_flash(&config, sizeof(config));
    if (on_device()) {
        config.dim = config.q_lora_rank = 32;
        config.n_heads = config.o_groups;
        config.o_lora_rank = 1;
        config.index_n_heads = 1;
    }
    TestModel model = empty_model(config);
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        ds41_layer_weights weights;
        ds41_layer_weights_init(&weights, sizeof(weights));
        weights.ownership = DS41_OWNERSHIP_BORROW;
        for (const TensorSpec &spec : tensor_specs(config, layer)) {
            if (!spec.present) continue;
            const int32_t dtype = spec.kind == Kind::projection ? DS41_DTYPE_BF16 : DS41_DTYPE_F32;
            weights.*spec.member = spec.cols == 0 ? view(zeros.data(), dtype, {spec.rows})
                                                  : view(zeros.data(), dtype, {spec.rows, spec.cols});
        }
        must(ds41_model_set_layer(model.get(), layer, &weights));
    }
    return model;
}

} // namespace

TEST_CASE("the release with its million positions costs nothing until it is used") {
    const Zeros zeros(size_t(128) << 20);
    const uint64_t before = resident_bytes();
    const auto start = std::chrono::steady_clock::now();
    const TestModel model = flash_model(zeros);
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    CHECK(seconds < 10); // valgrind included; without it a few milliseconds
    CHECK(resident_bytes() - before < 64 * kMiB);
    CHECK(ds41_seq_get_bytes(seq.get()) == 0);
    CHECK(ds41_ctx_get_bytes(ctx.get()) < 16 * kMiB);
    CHECK(model.config.max_seq_len == 1048576);

    // 43 window rings are 2.9 MB, the rest of 100 positions 0.1 MB.
    must(ds41_seq_reserve(seq.get(), 100));
    const uint64_t at_100 = ds41_seq_get_bytes(seq.get());
    CAPTURE(at_100);
    CHECK(at_100 >= 43 * 100 * 528);
    CHECK(at_100 < 8 * kMiB);
    int64_t position = -1;
    must(ds41_seq_get_position(seq.get(), DS41_ALL_LAYERS, &position));
    CHECK(position == 0);
    must(ds41_seq_reserve(seq.get(), 10)); // never shrinks
    CHECK(ds41_seq_get_bytes(seq.get()) == at_100);
}

TEST_CASE("the estimate is what sequences then hold") {
    const Zeros zeros(size_t(128) << 20);
    const TestModel flash = flash_model(zeros);
    const TestModel small = random_model(small_config());
    const auto compare = [](const TestModel &model, std::initializer_list<int64_t> lengths) {
        for (const int64_t n : lengths) {
            CAPTURE(n);
            const ds41_memory memory = estimate(model.get(), 1, n, 1);
            const Seq seq = new_seq(model.get());
            must(ds41_seq_reserve(seq.get(), n));
            CHECK(of_sequences(memory) == ds41_seq_get_bytes(seq.get()));
            const ds41_memory three = estimate(model.get(), 3, n, 1);
            CHECK(three.window == 3 * memory.window);
            CHECK(three.compressed == 3 * memory.compressed);
            CHECK(three.index_keys == 3 * memory.index_keys);
            CHECK(three.group_state == 3 * memory.group_state);
            CHECK(three.weights == memory.weights);
            CHECK(of_sequences(estimate(model.get(), 0, n, 1)) == 0);
        }
    };
    compare(small, {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 159, 160});
    compare(flash, {0, 1, 2, 100, 127, 128, 129, 1000, 4096, 4097});

    // Layers without weights take nothing.
    TestModel part = empty_model(small_config());
    for (const int32_t layer : {0, 4}) {
        part.layers.push_back(random_layer(part.config, layer, Format::bf16, kSeed));
        must(ds41_model_set_layer(part.get(), layer, &part.layers.back().weights));
    }
    compare(part, {0, 1, 9, 160});
    CHECK(of_sequences(estimate(part.get(), 1, 160, 1)) < of_sequences(estimate(small.get(), 1, 160, 1)));

    // Step by step is no different from at once.
    const Seq grown = new_seq(small.get());
    for (int64_t n = 0; n <= 160; n++) {
        must(ds41_seq_reserve(grown.get(), n));
        CHECK(ds41_seq_get_bytes(grown.get()) == of_sequences(estimate(small.get(), 1, n, 1)));
    }

    // A million positions: three ratio-2 sources and one of ratio 1, 288 + 68 bytes a row; windows do not grow.
    const ds41_memory million = estimate(flash.get(), 1, 1048576, 1);
    const uint64_t rows = 3 * 524288 + 1048576;
    CHECK(million.compressed >= rows * 288);
    CHECK(million.compressed <= rows * 288 + 4 * kMiB);
    CHECK(million.index_keys >= rows * 68);
    CHECK(million.index_keys <= rows * 68 + 4 * kMiB);
    CHECK(million.window >= 43 * 128 * 528);
    CHECK(million.window < 8 * kMiB);
    CHECK(million.group_state >= 3 * 2 * 512 * 4); // one waiting token of a ratio-2 group, products and gates
    CHECK(million.group_state < 1 * kMiB);
    // Whatever the weights: of the release as it is.
    ds41_config config;
    ds41_config_flash(&config, sizeof(config));
    const TestModel release = empty_model(config);
    CHECK(estimate(release.get(), 1, 1048576, 1).workspace < 256 * kMiB);
    CHECK(estimate(release.get(), 1, 100, 1).workspace < 32 * kMiB);
    CHECK(estimate(release.get(), 1, 1048576, 512).workspace < 1024 * kMiB);
}

TEST_CASE("pages come with tokens, and not with those that were reserved") {
    const TestModel model = random_model(small_config());
    const Ctx ctx = new_ctx(model.get());
    const Seq reserved = new_seq(model.get()), grown = new_seq(model.get());
    must(ds41_seq_reserve(reserved.get(), 40));
    const uint64_t bytes = ds41_seq_get_bytes(reserved.get());
    for (int32_t at = 0; at < 40; at += 5) {
        if (at < 20) {
            prefill(model, ctx.get(), reserved.get(), {3}, at, 5, nullptr);
        } else {
            decode(model, ctx.get(), {{reserved.get(), {3}, at, 5, nullptr}});
        }
        CHECK(ds41_seq_get_bytes(reserved.get()) == bytes);
        prefill(model, ctx.get(), grown.get(), {3}, at, 5, nullptr);
        const uint64_t needed = of_sequences(estimate(model.get(), 1, at + 5, 1));
        CHECK(ds41_seq_get_bytes(grown.get()) == needed);
    }
    must(ds41_seq_reset(grown.get()));
    CHECK(ds41_seq_get_bytes(grown.get()) == bytes); // kept for reuse
    prefill(model, ctx.get(), grown.get(), {4}, 0, 40, nullptr);
    CHECK(ds41_seq_get_bytes(grown.get()) == bytes);
    for (const int64_t n : {int64_t(-1), int64_t(161), INT64_MAX, INT64_MIN}) {
        check_refused(ds41_seq_reserve(grown.get(), n), {DS41_STATUS_INVALID_ARGUMENT, DS41_STATUS_INVALID_POSITION},
                      "ds41_seq_reserve", {"n_positions", std::to_string(n), "160"});
        CHECK(ds41_seq_get_bytes(grown.get()) == bytes);
    }
}

TEST_CASE("a context takes no more than the estimate") {
    for (const int32_t n_tokens : {1, 3, 40}) {
        CAPTURE(n_tokens);
        const int32_t end = is_simulated() ? std::max(n_tokens, 12) : 120;
        const TestModel model = random_model(small_config());
        const Ctx ctx = new_ctx(model.get());
        const Seq seq = new_seq(model.get());
        for (int32_t at = 0; at < end; at += n_tokens) {
            if (at % 2 == 0) prefill(model, ctx.get(), seq.get(), {3}, at, n_tokens, nullptr);
            if (at % 2 == 1) decode(model, ctx.get(), {{seq.get(), {3}, at, n_tokens, nullptr}});
        }
        CHECK(ds41_ctx_get_bytes(ctx.get()) > 0);
        CHECK(ds41_ctx_get_bytes(ctx.get()) <= estimate(model.get(), 1, end, n_tokens).workspace);
    }
}

TEST_CASE("weights are counted when they are copied") {
    const ds41_config config = small_config();
    const TestModel copied = random_model(config);
    const TestModel borrowed = random_model(config, Format::bf16, kSeed, DS41_OWNERSHIP_BORROW);
    uint64_t all = 0, small = 0;
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        for (const TensorSpec &spec : tensor_specs(config, layer)) {
            if (!spec.present) continue;
            uint64_t n_bytes = 0;
            must(ds41_tensor_get_bytes(&(copied.layers[static_cast<size_t>(layer)].weights.*spec.member), &n_bytes));
            all += n_bytes;
            if (spec.kind == Kind::vector) small += n_bytes;
        }
    }
    CHECK(estimate(empty_model(config).get(), 1, 1, 1).weights == 0);
    CHECK(estimate(copied.get(), 1, 1, 1).weights >= all);
    CHECK(estimate(copied.get(), 1, 1, 1).weights <=
          all + 2 * small + 4096); // bf16 vectors may be held as f32; padding
    if (on_device()) {             // the device's copies
        CHECK(estimate(borrowed.get(), 1, 1, 1).weights == estimate(copied.get(), 1, 1, 1).weights);
        return;
    }
    CHECK(estimate(borrowed.get(), 1, 1, 1).weights >= small);
    CHECK(estimate(borrowed.get(), 1, 1, 1).weights <= 3 * small + 4096);
}

TEST_CASE("an estimate of nonsense is refused") {
    const TestModel model = random_model(small_config());
    struct Row {
        const char *argument;
        int64_t n_seqs, n_positions, n_tokens, value;
    };
    const Row rows[] = {
        {"n_seqs", -1, 10, 1, -1},
        {"n_seqs", INT64_MIN, 10, 1, INT64_MIN},
        {"n_seqs", INT64_MAX, 160, 1, INT64_MAX},
        {"n_positions", 1, -1, 1, -1},
        {"n_positions", 1, 161, 1, 161},
        {"n_positions", 1, INT64_MAX, 1, INT64_MAX},
        {"n_tokens", 1, 10, 0, 0},
        {"n_tokens", 1, 10, -1, -1},
        {"n_tokens", 1, 10, INT64_MAX, INT64_MAX},
    };
    for (const Row &row : rows) {
        ds41_memory memory;
        ds41_memory_init(&memory, sizeof(memory));
        memory.window = 77;
        check_refused(ds41_model_estimate_memory(model.get(), row.n_seqs, row.n_positions, row.n_tokens, &memory),
                      {DS41_STATUS_INVALID_ARGUMENT}, "ds41_model_estimate_memory",
                      {row.argument, std::to_string(row.value)});
        CHECK(memory.window == 77);
    }
}
