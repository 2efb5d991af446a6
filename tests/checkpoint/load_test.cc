// ds41_model_load as a running program sees it: progress, cancelling, threads, mapped and copied weights, ranges of
// layers, and what stays behind. The files are make_files.py's; which bytes are wrong in a file is the Python tests'
// business.
#include "loading.h"
#include "made_files.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

void must_load(const Result &result) {
    INFO(result.message);
    REQUIRE(result.status == DS41_STATUS_OK);
}

size_t n_open_files() {
    size_t n = 0;
    for ([[maybe_unused]] const auto &entry : fs::directory_iterator("/proc/self/fd")) ++n;
    return n;
}

// Lines of the process's memory map that name a path.
size_t n_mapped(const std::string &path) {
    std::ifstream maps("/proc/self/maps");
    size_t n = 0;
    for (std::string line; std::getline(maps, line);) n += line.find(path) != std::string::npos;
    return n;
}

bool has_proc() {
    return fs::exists("/proc/self/fd") && fs::exists("/proc/self/maps");
}

// A copy of a checkpoint that a test may spoil; removed at the end.
class Copy {
public:
    explicit Copy(const std::string &path) : folder_(fs::temp_directory_path() / "ds41-load-test-XXXXXX") {
        std::string name = folder_.string();
        REQUIRE(mkdtemp(name.data()));
        folder_ = name;
        fs::copy(path, folder_ / "copy", fs::copy_options::recursive);
    }
    ~Copy() {
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }
    Copy(const Copy &) = delete;
    Copy &operator=(const Copy &) = delete;

    std::string path() const { return (folder_ / "copy").string(); }
    void remove() const { fs::remove_all(folder_ / "copy"); }

private:
    fs::path folder_;
};

ds41_load_options with(uint32_t flags, int32_t n_threads = 0) {
    ds41_load_options options = default_options();
    options.flags = flags;
    options.n_threads = n_threads;
    return options;
}

ds41_load_options range(int32_t first_layer, int32_t n_layers) {
    ds41_load_options options = default_options();
    options.first_layer = first_layer;
    options.n_layers = n_layers;
    return options;
}

// Names and bytes of the tensors that a load of everything reads.
struct Listed {
    std::set<std::string> names;
    uint64_t n_bytes = 0;
};

Listed listed(const std::string &path) {
    ds41_checkpoint *handle = nullptr;
    REQUIRE(ds41_checkpoint_load(&handle, path.c_str()) == DS41_STATUS_OK);
    const Checkpoint checkpoint(handle);
    Listed result;
    for (int64_t i = 0; i < ds41_checkpoint_get_n_tensors(handle); ++i) {
        ds41_checkpoint_tensor tensor;
        ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
        REQUIRE(ds41_checkpoint_get_tensor(handle, i, &tensor) == DS41_STATUS_OK);
        const std::string name = tensor.name;
        result.names.insert(name);
        if (tensor.dtype == DS41_DTYPE_FP8_E4M3) // one entry for two tensors of the file
            result.names.insert(name.substr(0, name.rfind('.')) + ".scale");
        result.n_bytes += tensor.n_bytes;
    }
    return result;
}

} // namespace

TEST_CASE("progress begins at nothing, never goes back, and ends with everything") {
    for (const std::string &name : kFiles)
        for (const uint32_t flags : {0u, DS41_LOAD_MAP, DS41_LOAD_EXPAND_FP8})
            for (const int32_t n_threads : {1, 4}) {
                CAPTURE(name);
                CAPTURE(flags);
                CAPTURE(n_threads);
                const std::string path = file(name);
                const Listed tensors = listed(path);
                const Result result = load(path, with(flags, n_threads));
                must_load(result);
                const std::vector<Progress> &calls = result.progress;
                REQUIRE(calls.size() >= 2);
                CHECK(calls.front().n_done == 0);
                CHECK(calls.back().n_done == calls.back().n_total);
                CHECK(calls.back().n_total == tensors.n_bytes);
                for (size_t i = 0; i < calls.size(); ++i) {
                    if (i > 0) CHECK(calls[i].n_done >= calls[i - 1].n_done);
                    CHECK(calls[i].n_total == calls[0].n_total);
                    CHECK_MESSAGE(tensors.names.count(calls[i].tensor) == 1, calls[i].tensor, " is none of them");
                }
            }
}

TEST_CASE("a load that is cancelled leaves nothing, at whatever call") {
    if (!has_proc()) return;
    for (const std::string &name : kFiles)
        for (const uint32_t flags : {0u, DS41_LOAD_MAP})
            for (const int32_t n_threads : {1, 5}) {
                CAPTURE(name);
                CAPTURE(flags);
                CAPTURE(n_threads);
                const std::string path = file(name);
                const int n_calls = static_cast<int>(load(path, with(flags, 1)).progress.size());
                const size_t n_files = n_open_files();
                for (const int at : {0, 1, 2, n_calls / 2, n_calls - 1}) {
                    CAPTURE(at);
                    const Result result = load(path, with(flags, n_threads), at);
                    // With several threads there may be fewer calls than with one.
                    if (result.status == DS41_STATUS_OK && static_cast<int>(result.progress.size()) <= at) continue;
                    CHECK(result.status == DS41_STATUS_CANCELLED);
                    CHECK(result.handle_untouched);
                    CHECK(result.message.starts_with("ds41_model_load: "));
                    CHECK_MESSAGE(static_cast<int>(result.progress.size()) == at + 1, "told again after it said stop");
                    CHECK(n_open_files() == n_files);
                    CHECK(n_mapped(DS41_CHECKPOINT_DIR) == 0);
                }
                const Result again = load(path, with(flags, n_threads));
                must_load(again);
                CHECK(!outputs_of(again.model.get()).empty());
            }
}

TEST_CASE("any count of threads, mapped or copied, gives the same bits") {
    for (const std::string &name : kFiles) {
        CAPTURE(name);
        const std::string path = file(name);
        const Outputs expected = outputs_of(load(path, with(0, 1)).model.get());
        REQUIRE(!expected.empty());
        for (const uint32_t flags : {0u, DS41_LOAD_MAP})
            for (const int32_t n_threads : {1, 2, 5, 0, 100}) {
                CAPTURE(flags);
                CAPTURE(n_threads);
                const Result result = load(path, with(flags, n_threads));
                must_load(result);
                CHECK(outputs_of(result.model.get()) == expected);
            }
    }
}

TEST_CASE("copied weights need the files no more; mapped ones keep them until the last child is gone") {
    if (!has_proc()) return;
    const Outputs expected = outputs_of(load(file("e.release")).model.get());
    for (const uint32_t flags : {0u, DS41_LOAD_MAP}) {
        CAPTURE(flags);
        const Copy copy(file("e.release"));
        const size_t n_files = n_open_files();
        {
            Result result = load(copy.path(), with(flags));
            must_load(result);
            CHECK((n_mapped(copy.path()) > 0) == (flags == DS41_LOAD_MAP));
            copy.remove();
            const ds41_config config = config_of(result.model.get());
            ds41_ctx *ctx = nullptr;
            ds41_seq *seq = nullptr;
            REQUIRE(ds41_ctx_create(&ctx, result.model.get(), nullptr) == DS41_STATUS_OK);
            const Ctx ctx_owner(ctx);
            REQUIRE(ds41_seq_create(&seq, result.model.get()) == DS41_STATUS_OK);
            const Seq seq_owner(seq);
            result.model.reset();
            CHECK(outputs_of(ctx, seq, config) == expected);
        }
        CHECK(n_open_files() == n_files);
        CHECK(n_mapped(copy.path()) == 0);
    }
}

TEST_CASE("mapped weights are not counted as held") {
    const auto held = [](uint32_t flags) {
        const Result result = load(file("e.release"), with(flags));
        must_load(result);
        ds41_memory memory;
        ds41_memory_init(&memory, sizeof(memory));
        REQUIRE(ds41_model_estimate_memory(result.model.get(), 0, 0, 1, &memory) == DS41_STATUS_OK);
        return memory.weights;
    };
    // What is copied all the same: norms, sinks, and the ratio-2 compressor, which is widened.
    CHECK(held(DS41_LOAD_MAP) < held(0) / 2);
    CHECK(held(DS41_LOAD_EXPAND_FP8) > held(0) * 3 / 2);
}

TEST_CASE("a range of layers is those layers and no others") {
    const std::string path = file("g.release"); // four layers and a draft layer
    const Outputs all = outputs_of(load(path).model.get());
    REQUIRE(all.size() == 5);
    struct Range {
        int32_t first, count;
        std::vector<int32_t> layers, alone; // with weights; that run without the others
    };
    for (const Range &part : {Range{0, 1, {0}, {0}}, Range{1, 1, {1}, {1}}, Range{1, 2, {1, 2}, {1, 2}},
                              Range{3, 1, {3}, {}}, Range{2, 2, {2, 3}, {2, 3}}, Range{4, 1, {4}, {4}},
                              Range{3, 0, {3, 4}, {4}}, Range{0, 5, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}}) {
        CAPTURE(part.first);
        CAPTURE(part.count);
        const Result result = load(path, range(part.first, part.count));
        must_load(result);
        const Outputs outputs = outputs_of(result.model.get());
        CHECK(outputs.size() == part.alone.size());
        for (const int32_t layer : part.alone) CHECK(outputs.at(layer) == all.at(layer));
        const std::set<std::string> read = [&] {
            std::set<std::string> prefixes;
            for (const Progress &call : result.progress) {
                const size_t dot = call.tensor.find('.', call.tensor.find('.') + 1);
                prefixes.insert(call.tensor.substr(0, dot));
            }
            return prefixes;
        }();
        for (const std::string &prefix : read)
            CHECK_MESSAGE(std::any_of(part.layers.begin(), part.layers.end(),
                                      [&](int32_t layer) {
                                          return prefix == (layer < 4 ? "layers." + std::to_string(layer) : "mtp.0");
                                      }),
                          prefix, " is in no chosen layer");
    }
    for (const auto &pair : {std::pair{5, 1},
                             {-1, 1},
                             {0, 6},
                             {4, 2},
                             {0, -1},
                             {INT32_MAX, INT32_MAX},
                             {1, INT32_MAX},
                             {INT32_MIN, INT32_MIN},
                             {5, 0},
                             {INT32_MAX, 0}}) {
        const int32_t first = pair.first, count = pair.second;
        CAPTURE(first);
        CAPTURE(count);
        const Result result = load(path, range(first, count));
        CHECK(result.status == DS41_STATUS_INVALID_LAYER);
        CHECK(result.handle_untouched);
        CHECK(result.progress.empty());
        const int32_t shown = first < 0 || first > 4 ? first : count;
        CHECK_MESSAGE(result.message.find(std::to_string(shown)) != std::string::npos, result.message);
    }
}

TEST_CASE("options out of range are refused") {
    const auto refused = [](const ds41_load_options &options, std::initializer_list<ds41_status> statuses,
                            const char *word) {
        const Result result = load(file("a.release"), options);
        INFO(result.message);
        CHECK(std::count(statuses.begin(), statuses.end(), result.status) == 1);
        CHECK(result.message.find(word) != std::string::npos);
        CHECK(result.handle_untouched);
    };
    ds41_load_options options = default_options();
    options.flags = 1u << 31;
    refused(options, {DS41_STATUS_INVALID_ARGUMENT}, "flags");
    options = default_options();
    options.n_threads = -1;
    refused(options, {DS41_STATUS_INVALID_ARGUMENT}, "n_threads");
    options = default_options();
    options.reserved = 1;
    refused(options, {DS41_STATUS_INVALID_ARGUMENT}, "reserved");
    options = default_options();
    options.struct_size = 0;
    refused(options, {DS41_STATUS_INVALID_STRUCT}, "struct_size");
    options = default_options();
    options.max_seq_len = -5;
    refused(options, {DS41_STATUS_INVALID_ARGUMENT, DS41_STATUS_INVALID_CONFIG}, "-5");
    ds41_model_options model_options;
    ds41_model_options_init(&model_options, sizeof(model_options));
    model_options.backend = "abacus";
    options = default_options();
    options.model = &model_options;
    refused(options, {DS41_STATUS_NO_BACKEND}, "abacus");
    model_options.backend = nullptr;
    model_options.topk_rule = 9;
    refused(options, {DS41_STATUS_INVALID_ARGUMENT}, "topk_rule");
}

TEST_CASE("an open checkpoint and a model of the same files do not need each other") {
    ds41_checkpoint *handle = nullptr;
    REQUIRE(ds41_checkpoint_load(&handle, file("f.gguf").c_str()) == DS41_STATUS_OK);
    Checkpoint checkpoint(handle);
    const Result result = load(file("f.gguf"), with(DS41_LOAD_MAP));
    must_load(result);
    const Outputs before = outputs_of(result.model.get());
    checkpoint.reset();
    CHECK(outputs_of(result.model.get()) == before);
}

TEST_CASE("loads on several threads at once") {
    const std::string path = file("e.scattered");
    const Outputs expected = outputs_of(load(path).model.get());
    std::vector<Outputs> outputs(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < outputs.size(); ++i)
        threads.emplace_back([&, i] {
            const Result result = load(path, with(i % 2 ? DS41_LOAD_MAP : 0u, static_cast<int32_t>(i)));
            if (result.model) outputs[i] = outputs_of(result.model.get());
        });
    for (std::thread &thread : threads) thread.join();
    for (const Outputs &each : outputs) CHECK(each == expected);
}
