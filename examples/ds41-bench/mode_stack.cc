// Mode `stack`: a decode step of all layers, each with weights of its own, as a model has them.
#include "modes.h"
#include "plain_read.h"
#include "step_cost.h"
#include "step_model.h"

#include "numeric/rows.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

namespace bench {

namespace {

/// The most memory that this process has had at once, in bytes; 0 where /proc does not tell.
uint64_t most_resident() {
    std::ifstream status("/proc/self/status");
    for (std::string name; status >> name; status.ignore(4096, '\n'))
        if (uint64_t kib = 0; name == "VmHWM:" && status >> kib) return kib * 1024;
    return 0;
}

void measure(const Options &options, const ds41::Backend &backend, const std::string &format, int64_t context,
             int32_t rows, Report &report) {
    const ds41_config raw = step_config(options.scale);
    const ds41::Config config(raw);
    const ds41_dtype dtype = dtype_of_format(format);
    std::vector<std::unique_ptr<StepWeights>> weights;
    std::vector<StepLayer> layers;
    std::vector<std::span<const std::byte>> matrices;
    uint64_t floor_bytes = 0, weight_bytes = 0, matrix_bytes = 0;
    for (int layer = 0; layer < config.n_layers; ++layer) {
        weights.push_back(std::make_unique<StepWeights>(config, backend.memory(), dtype));
        layers.push_back({layer, weights.back().get()});
        matrices.push_back(weights.back()->matrices_of(layer));
        weight_bytes += weights.back()->bytes_of(layer);
        matrix_bytes += matrices.back().size();
        StepCost cost;
        cost.stages = step_floor(config, layer, dtype, context, rows);
        floor_bytes += cost.all().floor_bytes;
    }
    StepRig rig(raw, backend.name, options.threads);
    rig.set_up({}, layers, context, rows);

    Case compared;
    compared.mode = "stack";
    compared.backend = backend.name;
    char name[120];
    std::snprintf(name, sizeof(name), "%d layers, %s, context %lld, %d %s", config.n_layers, format.c_str(),
                  static_cast<long long>(context), rows, rows == 1 ? "row" : "rows");
    compared.name = name + (options.scale > 1 ? ", scale " + std::to_string(options.scale) : "");
    const bool on_host = backend.memory().is_host();
    if (on_host) {
        const auto reader = std::make_shared<PlainReader>(options.threads);
        Contestant floor;
        floor.name = compared.floor = "plain read of the weights";
        floor.bytes = matrix_bytes;
        floor.threads = options.threads;
        floor.run = [&matrices, reader](uint64_t) {
            for (const std::span<const std::byte> each : matrices) reader->read(each);
        };
        compared.contestants.push_back(std::move(floor));
    }
    Contestant step;
    step.name = compared.baseline = "step";
    step.bytes = floor_bytes;
    step.threads = on_host ? options.threads : 1;
    step.run = [&rig](uint64_t) {
        rig.prep_next();
        rig.run();
        rig.synchronize();
    };
    compared.contestants.push_back(step);
    if (rig.has_graphs()) {
        rig.prep_next();
        rig.capture();
        step.name = "step, captured";
        step.run = [&rig](uint64_t) {
            rig.prep_next();
            rig.launch();
            rig.synchronize();
        };
        compared.contestants.push_back(std::move(step));
    }
    const std::vector<Result> results = run_case(compared, options.limits);
    char note[160];
    std::snprintf(note, sizeof(note), "%.2f GB of weights; the process has had %.2f GB of memory at most.",
                  static_cast<double>(weight_bytes) * 1e-9, static_cast<double>(most_resident()) * 1e-9);
    compared.note = note;
    report.add(compared, results);
}

} // namespace

void run_stack(const Options &options, Report &report) {
    const ds41::Backend &backend = ds41::choose_backend(options.backend.empty() ? nullptr : options.backend.c_str());
    for (const std::string &format : options.formats)
        for (const int64_t context : options.contexts)
            for (const int32_t rows : options.rows) measure(options, backend, format, context, rows, report);
}

} // namespace bench
