// Mode `load`: ds41_model_load() as an application calls it, with copies and with the weights left in the mapping,
// beside a read() of as many bytes of the same files. Uses the public header alone.
#include "modes.h"
#include "page_cache.h"

#include "common/progress_bar.h"

#include <ds41/ds41.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

namespace {

struct Destroy {
    void operator()(ds41_checkpoint *checkpoint) const { ds41_checkpoint_destroy(checkpoint); }
    void operator()(ds41_model *model) const { ds41_model_destroy(model); }
};
template <class T> using Handle = std::unique_ptr<T, Destroy>;

void check(ds41_status status) {
    if (status != DS41_STATUS_OK)
        throw std::runtime_error(std::string(ds41_last_error()) + " [" + ds41_status_name(status) + "]");
}

/// What a load of the chosen layers has to read.
struct Plan {
    std::vector<FilePart> parts; ///< As many bytes of each file as those layers' tensors take.
    uint64_t n_bytes = 0;
    size_t n_layers = 0;
};

Plan plan_load(const Options &options) {
    ds41_checkpoint *opened = nullptr;
    check(ds41_checkpoint_load(&opened, options.path.c_str()));
    const Handle<ds41_checkpoint> checkpoint(opened);
    std::vector<FilePart> files;
    for (int64_t i = 0; i < ds41_checkpoint_get_n_files(opened); ++i)
        files.push_back({ds41_checkpoint_get_file(opened, i), 0});
    std::set<int32_t> layers;
    for (int64_t i = 0; i < ds41_checkpoint_get_n_tensors(opened); ++i) {
        ds41_checkpoint_tensor tensor;
        ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
        check(ds41_checkpoint_get_tensor(opened, i, &tensor));
        const int64_t place = int64_t(tensor.layer) - options.first_layer;
        if (place < 0 || (options.n_layers > 0 && place >= options.n_layers)) continue;
        files[static_cast<size_t>(tensor.file)].n_bytes += tensor.n_bytes;
        layers.insert(tensor.layer);
    }
    Plan plan;
    plan.n_layers = layers.size();
    for (FilePart &file : files) {
        plan.n_bytes += file.n_bytes;
        if (file.n_bytes > 0) plan.parts.push_back(std::move(file));
    }
    return plan;
}

Handle<ds41_model> load(const Options &options, uint32_t flags, tools::ProgressBar *bar) {
    ds41_model_options model_options;
    ds41_model_options_init(&model_options, sizeof(model_options));
    if (!options.backend.empty()) model_options.backend = options.backend.c_str();
    ds41_load_options load_options;
    ds41_load_options_init(&load_options, sizeof(load_options));
    load_options.flags = flags;
    load_options.model = &model_options;
    load_options.first_layer = options.first_layer;
    load_options.n_layers = options.n_layers;
    load_options.n_threads = options.threads;
    if (bar) load_options.progress = tools::ProgressBar::on_progress;
    load_options.progress_user = bar;
    ds41_model *model = nullptr;
    check(ds41_model_load(&model, options.path.c_str(), &load_options));
    return Handle<ds41_model>(model);
}

uint64_t held_bytes(const ds41_model *model) {
    ds41_memory memory;
    ds41_memory_init(&memory, sizeof(memory));
    check(ds41_model_estimate_memory(model, 0, 0, 1, &memory));
    return memory.weights;
}

double in_mb(uint64_t n_bytes) {
    return static_cast<double>(n_bytes) * 1e-6;
}

/// The three ways to the weights. Freeing a model, and `before`, are not timed.
Case compare_loads(const Options &options, const Plan &plan, const std::function<void()> &before) {
    Case compared;
    compared.mode = "load";
    const auto add = [&](const char *name, int threads, std::function<void(uint64_t)> run) -> Contestant & {
        Contestant contestant;
        contestant.name = name;
        contestant.run = std::move(run);
        contestant.before = before;
        contestant.bytes = plan.n_bytes;
        contestant.threads = threads;
        return compared.contestants.emplace_back(std::move(contestant));
    };
    const auto buffer = std::make_shared<std::vector<char>>(size_t(1) << 20);
    compared.floor = "read()";
    add("read()", 1, [parts = plan.parts, buffer](uint64_t) { read_sequentially(parts, *buffer); });

    const auto model = std::make_shared<Handle<ds41_model>>();
    const auto free_model = [model] { model->reset(); };
    const auto loads = [&options, model](uint32_t flags) {
        return [&options, model, flags](uint64_t) { *model = load(options, flags, nullptr); };
    };
    compared.baseline = "load, copied";
    add("load, copied", options.threads, loads(0)).after = free_model;
    add("load, mapped", options.threads, loads(DS41_LOAD_MAP)).after = free_model;
    return compared;
}

} // namespace

void run_load(const Options &options, Report &report) {
    const Plan plan = plan_load(options);
    uint64_t n_copied = 0;
    std::string backend;
    { // fills the page cache, and is the one load with a bar: drawing it is not timed
        tools::ProgressBar bar;
        const Handle<ds41_model> model = load(options, 0, &bar);
        n_copied = held_bytes(model.get());
        backend = ds41_model_get_backend(model.get());
    }
    const uint64_t n_mapped = held_bytes(load(options, DS41_LOAD_MAP, nullptr).get());

    char shape[160], note[200];
    std::snprintf(shape, sizeof(shape), "%zu layers, %.1f MB in %zu files, ", plan.n_layers, in_mb(plan.n_bytes),
                  plan.parts.size());
    std::snprintf(note, sizeof(note),
                  "The model holds %.2f MB when copied, %.2f MB when mapped; mapped pages are read at their first use.",
                  in_mb(n_copied), in_mb(n_mapped));
    const auto measure = [&](const char *state, const std::function<void()> &before) {
        Case compared = compare_loads(options, plan, before);
        compared.name = std::string(shape) + state;
        compared.backend = backend;
        compared.note = note;
        report.add(compared, run_case(compared, options.limits));
    };
    measure("warm page cache", nullptr);

    const auto drop = [&plan] {
        for (const FilePart &part : plan.parts) drop_from_cache(part.path);
    };
    drop();
    const double share = cached_share(plan.parts);
    if (share <= 0.05) { // another process may have some pages mapped
        measure("cold page cache", drop);
        return;
    }
    char reason[120];
    std::snprintf(reason, sizeof(reason), "%.0f %% of the files stay in the page cache, or the kernel does not tell",
                  100 * share);
    report.skip("load", std::string(shape) + "cold page cache", reason);
}

} // namespace bench
