// Mode `step`: what one layer's part of a decode step costs. Counted where the device counts, and timed where it is one
// that takes time.
#include "modes.h"
#include "plain_read.h"
#include "step_cost.h"
#include "step_model.h"

#include "backend/cuda/plugin.h"
#include "numeric/rows.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>

namespace bench {

namespace {

/// More than full sizes take; of smaller ones, which are for trying out, some may then stay in a cache.
constexpr size_t kMaxCopies = 64;

/// The device of a backend; null for those that compute on the host.
const ds41::DeviceFunctions *device_of(const ds41::Backend &backend) {
    const ds41::DevicePlugin *plugin = std::strcmp(backend.name, "sim") == 0    ? &ds41::sim_plugin()
                                       : std::strcmp(backend.name, "cuda") == 0 ? &ds41::cuda_plugin()
                                                                                : nullptr;
    return plugin ? plugin->functions() : nullptr;
}

/// Whether it counts bytes and launches; the others take time.
bool counts_bytes(const ds41::DeviceFunctions *device) {
    return device && std::strcmp(device->name, "sim") == 0;
}

void must(int error, const ds41::DeviceFunctions &device) {
    if (error != 0) throw std::runtime_error(device.describe(error));
}

struct Counted {
    ds41::DeviceCounts total{};
    std::map<std::string, ds41::DeviceCounts> by_range;
};

/// Since the last call; what is enqueued is done first.
Counted take_counts(const ds41::DeviceFunctions &device) {
    Counted counted;
    const auto each = [](const char *range, const ds41::DeviceCounts *counts, void *user) {
        static_cast<Counted *>(user)->by_range[range] = *counts;
    };
    device.take_counts(&counted.total, each, &counted);
    return counted;
}

HostCost host_cost(const ds41::DeviceCounts &counts) {
    return {counts.launches,       counts.graph_launches,   counts.uploads,
            counts.uploaded_bytes, counts.synchronisations, counts.bytes_read + counts.bytes_written};
}

/// Bytes that a copy on the device reads and writes in a nanosecond.
double copied_gbs(const ds41::DeviceFunctions &device, const ds41::Memory &memory) {
    constexpr size_t kBytes = size_t{256} << 20;
    constexpr int kCopies = 20;
    const ds41::Block source(memory, kBytes), target(memory, kBytes);
    ds41::DeviceStream stream = nullptr;
    must(device.create_stream(&stream), device);
    must(device.fill(stream, source.data(), 1, kBytes), device);
    must(device.copy(stream, target.data(), source.data(), kBytes), device);
    take_counts(device);
    device.push_range(stream, "copies");
    for (int i = 0; i < kCopies; ++i) must(device.copy(stream, target.data(), source.data(), kBytes), device);
    device.pop_range(stream);
    Counted counted = take_counts(device);
    must(device.synchronize(stream), device);
    device.destroy_stream(stream);
    const auto nanoseconds = static_cast<double>(counted.by_range["copies"].nanoseconds);
    if (!(nanoseconds > 0)) throw std::runtime_error("the device tells no times");
    return 2.0 * kCopies * static_cast<double>(kBytes) / nanoseconds;
}

/// A step of which everything is in place: pages, workspaces, and what is uploaded once.
StepCost count(const ds41::DeviceFunctions &device, StepRig &rig, StepCost cost) {
    rig.prep_previous();
    rig.run_before();
    rig.run();
    rig.synchronize();
    take_counts(device);

    rig.prep();
    cost.prep = host_cost(take_counts(device).total);
    rig.run_before();
    take_counts(device);
    rig.run();
    const Counted body = take_counts(device);
    cost.body = host_cost(body.total);
    for (StageCost &stage : cost.stages) {
        const auto found = body.by_range.find("layer " + std::to_string(cost.layer) + " " + stage.stage);
        if (found == body.by_range.end()) continue;
        stage.launches = found->second.launches;
        stage.requested_bytes = found->second.bytes_read + found->second.bytes_written;
        stage.distinct_bytes = found->second.distinct_bytes;
    }
    if (!rig.has_graphs()) return cost;

    rig.prep();
    rig.capture();
    rig.prep_previous();
    rig.run_before();
    rig.launch(); // moves the step to the graph's memory
    rig.synchronize();
    take_counts(device);

    rig.prep();
    cost.captured_prep = host_cost(take_counts(device).total);
    rig.run_before();
    take_counts(device);
    rig.launch();
    cost.captured = host_cost(take_counts(device).total);
    return cost;
}

class Steps {
public:
    Steps(const Options &options, Report &report)
        : options_(options), report_(report), raw_(step_config(options.scale)), config_(raw_),
          backend_(ds41::choose_backend(options.backend.empty() ? nullptr : options.backend.c_str())),
          device_(device_of(backend_)) {}

    void run() {
        for (const std::string &format : options_.formats) {
            std::vector<std::unique_ptr<StepWeights>> copies; // made as they are needed
            for (const int layer : layers())
                for (const int64_t context : options_.contexts)
                    for (const int32_t rows : options_.rows) measure(layer, format, context, rows, copies);
        }
    }

private:
    using Copies = std::vector<std::unique_ptr<StepWeights>>;

    std::vector<int> layers() const {
        if (options_.n_layers == 0) return layers_of_each_kind(config_);
        std::vector<int> layers;
        for (int32_t i = 0; i < options_.n_layers; ++i) {
            config_.check_layer(options_.first_layer + i);
            layers.push_back(options_.first_layer + i);
        }
        return layers;
    }

    /// What comes before the layer reads other copies: it would leave this one in a cache.
    std::unique_ptr<StepRig> rig(const Copies &copies, size_t i, int layer, int64_t context, int32_t rows) const {
        auto rig = std::make_unique<StepRig>(raw_, backend_.name, options_.threads);
        std::vector<StepLayer> before;
        for (const int each : layers_before(config_, layer))
            before.push_back({each, copies[(i + copies.size() / 2) % copies.size()].get()});
        rig->set_up(before, {{layer, copies[i].get()}}, context, rows);
        return rig;
    }

    void make_copies(Copies &copies, size_t n, const std::string &format) const {
        while (copies.size() < n)
            copies.push_back(std::make_unique<StepWeights>(config_, backend_.memory(), dtype_of_format(format)));
    }

    void measure(int layer, const std::string &format, int64_t context, int32_t rows, Copies &copies) {
        StepCost cost;
        cost.kind = kind_of(config_.role(layer));
        cost.format = format;
        cost.backend = backend_.name;
        cost.layer = layer;
        cost.context = context;
        cost.n_rows = rows;
        cost.scale = options_.scale;
        char shape[120];
        std::snprintf(shape, sizeof(shape), " (layer %d), %s, context %lld, %d %s", layer, format.c_str(),
                      static_cast<long long>(context), rows, rows == 1 ? "row" : "rows");
        cost.name = cost.kind + shape + (options_.scale > 1 ? ", scale " + std::to_string(options_.scale) : "");
        cost.stages = step_floor(config_, layer, dtype_of_format(format), context, rows);
        make_copies(copies, 1, format);
        if (counts_bytes(device_))
            report_.add(count(*device_, *rig(copies, 0, layer, context, rows), std::move(cost)));
        else
            time(cost, copies);
    }

    void time(const StepCost &cost, Copies &copies) {
        const bool on_host = backend_.memory().is_host();
        // Long contexts of many rows fill memory: then fewer copies, which no cache holds either.
        constexpr uint64_t kMostCached = uint64_t{16} << 30;
        const auto n_tokens = static_cast<uint64_t>(cost.context) * static_cast<uint64_t>(cost.n_rows);
        const uint64_t cached =
            2 * n_tokens *
            (ds41::compressed_row_bytes(config_.head_dim) + ds41::index_key_row_bytes(config_.index_head_dim));
        const size_t n_copies = std::min({n_rotated_copies(copies[0]->bytes_of(cost.layer)), kMaxCopies,
                                          std::max<size_t>(2, static_cast<size_t>(kMostCached / cached))});
        make_copies(copies, n_copies, cost.format);
        std::vector<std::shared_ptr<StepRig>> rigs;
        std::vector<std::span<const std::byte>> matrices;
        for (size_t i = 0; i < n_copies; ++i) {
            rigs.push_back(rig(copies, i, cost.layer, cost.context, cost.n_rows));
            matrices.push_back(copies[i]->matrices_of(cost.layer));
        }

        Case compared;
        compared.mode = "step";
        compared.name = cost.name;
        compared.backend = cost.backend;
        const auto add = [&](const char *name, auto run) -> Contestant & {
            Contestant contestant;
            contestant.name = name;
            contestant.bytes = cost.all().floor_bytes;
            contestant.threads = on_host ? options_.threads : 1;
            contestant.run = std::move(run);
            return compared.contestants.emplace_back(std::move(contestant));
        };
        // Each run takes the next copy, whoever runs: before it is timed, the step is brought to the layer.
        const auto at = std::make_shared<size_t>(0);
        const auto before = [rigs, at] {
            *at = (*at + 1) % rigs.size();
            rigs[*at]->prep();
            rigs[*at]->run_before();
            rigs[*at]->synchronize();
        };
        if (on_host) {
            const auto reader = std::make_shared<PlainReader>(options_.threads);
            compared.floor = "plain read of the weights";
            Contestant &floor =
                add("plain read of the weights", [matrices, at, reader](uint64_t) { reader->read(matrices[*at]); });
            floor.bytes = matrices[0].size();
            floor.before = [rigs, at] { *at = (*at + 1) % rigs.size(); };
        }
        compared.baseline = "step";
        add("step", [rigs, at](uint64_t) {
            rigs[*at]->run();
            rigs[*at]->synchronize();
        }).before = before;
        if (rigs[0]->has_graphs()) {
            for (const auto &rig : rigs) {
                rig->prep();
                rig->capture();
            }
            add("step, captured", [rigs, at](uint64_t) {
                rigs[*at]->launch();
                rigs[*at]->synchronize();
            }).before = before;
        }
        report_.add(compared, run_case(compared, options_.limits));
        if (device_) time_stages(cost, rigs);
    }

    /// Between events on the device, in steps that take the copies in turn.
    void time_stages(StepCost cost, const std::vector<std::shared_ptr<StepRig>> &rigs) {
        constexpr size_t kSteps = 32;
        if (copied_gbs_ == 0) copied_gbs_ = copied_gbs(*device_, backend_.memory());
        cost.copied_gbs = copied_gbs_;
        take_counts(*device_);
        for (size_t i = 0; i < kSteps; ++i) {
            StepRig &rig = *rigs[i % rigs.size()];
            rig.prep();
            rig.run_before();
            rig.run();
        }
        for (const auto &rig : rigs) rig->synchronize();
        const Counted counted = take_counts(*device_);
        for (StageCost &stage : cost.stages) {
            const auto found = counted.by_range.find("layer " + std::to_string(cost.layer) + " " + stage.stage);
            if (found != counted.by_range.end())
                stage.microseconds = static_cast<double>(found->second.nanoseconds) * 1e-3 / kSteps;
        }
        report_.add_times(cost);
    }

    const Options &options_;
    Report &report_;
    const ds41_config raw_;
    const ds41::Config config_;
    const ds41::Backend &backend_;
    const ds41::DeviceFunctions *device_;
    double copied_gbs_ = 0;
};

} // namespace

void run_step(const Options &options, Report &report) {
    Steps(options, report).run();
}

} // namespace bench
