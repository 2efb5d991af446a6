// The calls of the library, in their order: open, configuration, tensors, memory. The estimate is a load without the
// reading, so its log tells which problems belong to the layers that were asked for.
#include "contents.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <set>

namespace inspect {

namespace {

struct Destroy {
    void operator()(ds41_checkpoint *checkpoint) const { ds41_checkpoint_destroy(checkpoint); }
    void operator()(ds41_model *model) const { ds41_model_destroy(model); }
};
template <class T> using Handle = std::unique_ptr<T, Destroy>;

/// The library's sentence without the function in front.
std::string last_error() {
    const std::string text = ds41_last_error();
    const size_t colon = text.find(": ");
    return text.starts_with("ds41_") && colon != std::string::npos ? text.substr(colon + 2) : text;
}

void must(ds41_status status) {
    if (status != DS41_STATUS_OK) throw std::runtime_error(last_error());
}

void keep_error(int32_t level, const char *message, void *user) {
    if (level == DS41_LOG_ERROR) static_cast<std::vector<std::string> *>(user)->push_back(message);
}

class Reader {
public:
    explicit Reader(const Options &options) : options_(options) {
        ds41_checkpoint *opened = nullptr;
        must(ds41_checkpoint_load(&opened, options.path.c_str()));
        checkpoint_.reset(opened);
    }

    Contents read() {
        out_.format = ds41_checkpoint_get_format(checkpoint_.get());
        for (int64_t i = 0; i < ds41_checkpoint_get_n_files(checkpoint_.get()); ++i) {
            const char *path = ds41_checkpoint_get_file(checkpoint_.get(), i);
            out_.files.push_back({path, std::filesystem::file_size(path)});
        }
        for (int64_t i = 0; i < ds41_checkpoint_get_n_problems(checkpoint_.get()); ++i)
            out_.problems.emplace_back(ds41_checkpoint_get_problem(checkpoint_.get(), i));
        ds41_config config;
        ds41_config_init(&config, sizeof(config));
        if (ds41_checkpoint_get_config(checkpoint_.get(), &config) != DS41_STATUS_OK) return out_; // among the problems
        out_.config = config;
        choose_backend();
        choose_counts();
        read_layers();
        estimate();
        return std::move(out_);
    }

private:
    ds41_model_options model_options() const {
        ds41_model_options options;
        ds41_model_options_init(&options, sizeof(options));
        options.backend = options_.backend.c_str();
        return options;
    }

    void choose_backend() {
        const ds41_model_options options = model_options();
        ds41_model *created = nullptr;
        const ds41_status status = ds41_model_create(&created, &*out_.config, &options);
        if (status == DS41_STATUS_NO_BACKEND) {
            std::string names = "auto";
            for (int32_t i = 0; ds41_backend_get_name(i); ++i) names += std::string(", ") + ds41_backend_get_name(i);
            throw BadUsage("--backend is '" + options_.backend + "', need one that runs here of: " + names);
        }
        must(status);
        const Handle<ds41_model> model(created);
        out_.backend = ds41_model_get_backend(model.get());
    }

    /// The options against the configuration, and the defaults that depend on it.
    void choose_counts() {
        const ds41_config &config = *out_.config;
        const auto refuse = [](const char *option, int64_t value, int64_t least, int64_t most, const char *what) {
            throw BadUsage(std::string(option) + " is " + std::to_string(value) + ", need a number from " +
                           std::to_string(least) + " to " + std::to_string(most) + " (" + what + ")");
        };
        if (options_.some_layers && options_.last_layer >= config.n_compress_ratios)
            refuse("the last of --layers", options_.last_layer, 0, config.n_compress_ratios - 1,
                   "layers of the checkpoint's configuration");
        if (options_.context > config.max_seq_len)
            refuse("--context", options_.context, 1, config.max_seq_len, "max_seq_len of the checkpoint");
        constexpr int64_t kContext = 4096; // a conversation
        constexpr int64_t kPrefill = 64;   // a chunk of a prompt; workspaces grow with it
        out_.context = options_.context ? options_.context : std::min<int64_t>(kContext, config.max_seq_len);
        out_.batch = options_.batch;
        const int64_t most = out_.context > std::numeric_limits<int64_t>::max() / out_.batch
                                 ? std::numeric_limits<int64_t>::max()
                                 : out_.batch * out_.context;
        if (options_.prefill > most) refuse("--prefill", options_.prefill, 1, most, "tokens of all sequences");
        out_.prefill = options_.prefill ? options_.prefill : std::min(std::max(out_.batch, kPrefill), most);
    }

    void read_layers() {
        const int32_t first = options_.some_layers ? options_.first_layer : 0;
        const int32_t last = options_.some_layers ? options_.last_layer : out_.config->n_compress_ratios - 1;
        for (int32_t index = first; index <= last; ++index) {
            Layer layer;
            layer.index = index;
            ds41_layer_role_init(&layer.role, sizeof(layer.role));
            must(ds41_config_get_role(&*out_.config, index, &layer.role));
            out_.layers.push_back(std::move(layer));
        }
        for (int64_t i = 0; i < ds41_checkpoint_get_n_tensors(checkpoint_.get()); ++i) {
            ds41_checkpoint_tensor found;
            ds41_checkpoint_tensor_init(&found, sizeof(found));
            must(ds41_checkpoint_get_tensor(checkpoint_.get(), i, &found));
            if (found.layer < first || found.layer > last) continue;
            Layer &layer = out_.layers[static_cast<size_t>(found.layer - first)];
            const Tensor &tensor = layer.tensors.emplace_back(describe(found));
            layer.n_bytes += tensor.n_bytes;
            layer.n_model_bytes += tensor.n_model_bytes;
            out_.n_bytes += tensor.n_bytes;
            out_.n_model_bytes += tensor.n_model_bytes;
        }
    }

    Tensor describe(const ds41_checkpoint_tensor &found) const {
        Tensor tensor;
        tensor.layer = found.layer;
        tensor.member = found.member;
        tensor.name = found.name;
        tensor.type = found.type;
        tensor.shape.assign(found.shape, found.shape + found.n_dims);
        tensor.file = found.file;
        tensor.dtype = found.dtype;
        tensor.n_bytes = found.n_bytes;
        tensor.n_model_bytes = found.n_model_bytes;
        // The library tells what the default options give; this option is the only one that changes a form.
        if (options_.expand_fp8 && tensor.dtype == DS41_DTYPE_FP8_E4M3) {
            tensor.dtype = DS41_DTYPE_BF16;
            tensor.n_model_bytes = static_cast<uint64_t>(tensor.shape[0]) * static_cast<uint64_t>(tensor.shape[1]) * 2;
        }
        // Of the forms that stay only FP8 has another name in files.
        tensor.expands = tensor.type != ds41_dtype_name(tensor.dtype) && tensor.dtype != DS41_DTYPE_FP8_E4M3;
        return tensor;
    }

    void estimate() {
        ds41_load_options load;
        ds41_load_options_init(&load, sizeof(load));
        ds41_model_options model = model_options();
        std::vector<std::string> logged;
        model.log = keep_error;
        model.log_user = &logged;
        load.model = &model;
        load.flags = (options_.map ? DS41_LOAD_MAP : 0u) | (options_.expand_fp8 ? DS41_LOAD_EXPAND_FP8 : 0u);
        if (options_.some_layers) {
            load.first_layer = options_.first_layer;
            load.n_layers = options_.last_layer - options_.first_layer + 1;
        }
        Memory memory;
        ds41_memory_init(&memory.sizes, sizeof(memory.sizes));
        const ds41_status status = ds41_checkpoint_estimate_memory(checkpoint_.get(), &load, out_.batch, out_.context,
                                                                   out_.prefill, &memory.sizes);
        if (options_.some_layers) {
            const std::set<std::string> concerned(logged.begin(), logged.end());
            std::copy_if(out_.problems.begin(), out_.problems.end(), std::back_inserter(out_.other_problems),
                         [&](const std::string &problem) { return !concerned.contains(problem); });
            out_.problems = logged;
        }
        if (status != DS41_STATUS_OK) {
            // Of draft layers that were asked for and are not there the log knows nothing.
            if (status == DS41_STATUS_MISSING_TENSOR && out_.problems.empty()) out_.problems.push_back(last_error());
            if (out_.problems.empty()) throw BadUsage("memory cannot be told: " + last_error());
            return;
        }
        const ds41_memory &sizes = memory.sizes;
        memory.in_files = out_.n_model_bytes - sizes.weights;
        for (const uint64_t n_bytes :
             {sizes.weights, sizes.window, sizes.compressed, sizes.index_keys, sizes.group_state, sizes.workspace})
            if (__builtin_add_overflow(memory.total, n_bytes, &memory.total))
                throw BadUsage("memory cannot be told: need counts for which the bytes stay below 2^64");
        out_.memory = memory;
    }

    const Options &options_;
    Handle<ds41_checkpoint> checkpoint_;
    Contents out_;
};

} // namespace

Contents read_contents(const Options &options) {
    return Reader(options).read();
}

} // namespace inspect
