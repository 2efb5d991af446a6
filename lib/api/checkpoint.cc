// Checkpoints: opening, describing, loading.
#include "checkpoint/checkpoint.h"

#include "api/boundary.h"
#include "api/handles.h"
#include "checkpoint/loader.h"
#include "forward/memory_estimate.h"

using namespace ds41;

namespace {

// The options with the structs that they point to, checked.
ds41_load_options checked_options(const ds41_load_options *options) {
    ds41_load_options out;
    ds41_load_options_init(&out, sizeof(out));
    if (!options) return out;
    out = read_struct(options, "options");
    if (out.model) read_struct(out.model, "options.model");
    if (out.config) read_struct(out.config, "options.config");
    return out;
}

} // namespace

void ds41_checkpoint_tensor_init(ds41_checkpoint_tensor *tensor, size_t struct_size) {
    init_struct(tensor, struct_size);
}

void ds41_load_options_init(ds41_load_options *options, size_t struct_size) {
    init_struct(options, struct_size);
}

ds41_status ds41_checkpoint_load(ds41_checkpoint **checkpoint, const char *path) {
    return guarded(__func__, [&] {
        check_argument(checkpoint, "checkpoint");
        check_argument(path, "path");
        *checkpoint = new ds41_checkpoint{std::make_shared<const Checkpoint>(path)};
    });
}

void ds41_checkpoint_destroy(ds41_checkpoint *checkpoint) {
    delete checkpoint;
}

const char *ds41_checkpoint_get_format(const ds41_checkpoint *checkpoint) {
    if (!checkpoint) return "";
    return checkpoint->impl->format() == CheckpointFormat::kGguf ? "gguf" : "safetensors";
}

int64_t ds41_checkpoint_get_n_files(const ds41_checkpoint *checkpoint) {
    return checkpoint ? static_cast<int64_t>(checkpoint->impl->files().size()) : 0;
}

const char *ds41_checkpoint_get_file(const ds41_checkpoint *checkpoint, int64_t index) {
    if (index < 0 || index >= ds41_checkpoint_get_n_files(checkpoint)) return nullptr;
    return checkpoint->impl->files()[static_cast<std::size_t>(index)].path.c_str();
}

ds41_status ds41_checkpoint_get_config(const ds41_checkpoint *checkpoint, ds41_config *config) {
    return guarded(__func__, [&] {
        check_argument(checkpoint, "checkpoint");
        check_struct_size(config, "config");
        write_struct(config, "config", checkpoint->impl->config());
    });
}

int64_t ds41_checkpoint_get_n_tensors(const ds41_checkpoint *checkpoint) {
    const Inventory *inventory = checkpoint ? checkpoint->impl->inventory() : nullptr;
    return inventory ? static_cast<int64_t>(inventory->tensors().size()) : 0;
}

ds41_status ds41_checkpoint_get_tensor(const ds41_checkpoint *checkpoint, int64_t index,
                                       ds41_checkpoint_tensor *tensor) {
    return guarded(__func__, [&] {
        check_argument(checkpoint, "checkpoint");
        check_struct_size(tensor, "tensor");
        const int64_t n = ds41_checkpoint_get_n_tensors(checkpoint);
        DS41_CHECK(index >= 0 && index < n, DS41_STATUS_INVALID_ARGUMENT, "index is %lld, need a value in [0, %lld]",
                   static_cast<long long>(index), static_cast<long long>(n - 1));
        const PlacedTensor &placed = checkpoint->impl->inventory()->tensors()[static_cast<std::size_t>(index)];
        const FoundTensor &weight = *placed.weight;
        const Config config(checkpoint->impl->config());
        const Conversion conversion = convert_to(*weight.type, placed.place->kind(config.role(placed.layer)), 0);
        ds41_checkpoint_tensor out{};
        out.layer = placed.layer;
        out.member = placed.place->name;
        out.name = weight.name.c_str();
        out.type = weight.type_name;
        out.n_dims = static_cast<int32_t>(weight.shape.size());
        std::copy(weight.shape.begin(), weight.shape.end(), out.shape);
        out.file = weight.range.file;
        out.dtype = placed.place->vector ? DS41_DTYPE_F32 : conversion.dtype;
        out.n_bytes = weight.range.n_bytes + (placed.scale ? placed.scale->range.n_bytes : 0);
        out.n_model_bytes = model_bytes(placed, conversion);
        write_struct(tensor, "tensor", out);
    });
}

int64_t ds41_checkpoint_get_n_problems(const ds41_checkpoint *checkpoint) {
    return checkpoint ? static_cast<int64_t>(checkpoint->impl->problems().size()) : 0;
}

const char *ds41_checkpoint_get_problem(const ds41_checkpoint *checkpoint, int64_t index) {
    if (index < 0 || index >= ds41_checkpoint_get_n_problems(checkpoint)) return nullptr;
    return checkpoint->impl->problems()[static_cast<std::size_t>(index)].c_str();
}

ds41_status ds41_checkpoint_estimate_memory(const ds41_checkpoint *checkpoint, const ds41_load_options *options,
                                            int64_t n_seqs, int64_t n_positions, int64_t n_tokens,
                                            ds41_memory *memory) {
    return guarded(__func__, [&] {
        check_argument(checkpoint, "checkpoint");
        check_struct_size(memory, "memory");
        const LoadPlan plan(checkpoint->impl, checked_options(options));
        ds41_memory out = estimate_memory(*plan.model(), plan.layers(), n_seqs, n_positions, n_tokens);
        out.weights = plan.copied_bytes();
        write_struct(memory, "memory", out);
    });
}

ds41_status ds41_model_load(ds41_model **model, const char *path, const ds41_load_options *options) {
    return guarded(__func__, [&] {
        check_argument(model, "model");
        check_argument(path, "path");
        const ds41_load_options checked = checked_options(options);
        LoadPlan plan(std::make_shared<const Checkpoint>(path), checked);
        plan.load();
        *model = new ds41_model{plan.model()};
    });
}
