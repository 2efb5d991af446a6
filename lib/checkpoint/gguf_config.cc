#include "checkpoint/gguf_config.h"

#include "checkpoint/text.h"
#include "error.h"

#include <algorithm>
#include <cfloat>
#include <cinttypes>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>

namespace ds41 {

namespace {

constexpr char kArchitecture[] = "deepseek41";
// What llama.cpp takes where a file does not say.
constexpr float kDefaultBetaFast = 32.0f, kDefaultBetaSlow = 1.0f;
// V4.1's, for files that were converted before there were keys for them.
constexpr std::int32_t kDefaultCandidateBlocks = 2048, kDefaultCandidateBlockSize = 8;

using Config = ds41_config;
using Layers = std::vector<std::int64_t>;

struct IntegerKey {
    const char *name;
    std::int32_t Config::*member;
};
constexpr IntegerKey kIntegers[] = {
    {"block_count", &Config::n_layers},
    {"embedding_length", &Config::dim},
    {"attention.head_count", &Config::n_heads},
    {"attention.key_length", &Config::head_dim},
    {"rope.dimension_count", &Config::rope_head_dim},
    {"attention.q_lora_rank", &Config::q_lora_rank},
    {"attention.output_group_count", &Config::o_groups},
    {"attention.output_lora_rank", &Config::o_lora_rank},
    {"attention.sliding_window", &Config::window_size},
    {"attention.indexer.head_count", &Config::index_n_heads},
    {"attention.indexer.key_length", &Config::index_head_dim},
    {"attention.indexer.top_k", &Config::index_topk},
};

struct RealKey {
    const char *name;
    float Config::*member;
};
constexpr RealKey kReals[] = {
    {"attention.layer_norm_rms_epsilon", &Config::norm_eps},
    {"rope.freq_base", &Config::rope_theta},
    {"attention.compress_rope_freq_base", &Config::compress_rope_theta},
    {"rope.scaling.factor", &Config::rope_factor},
};

std::string key_of(std::string_view name) {
    return std::string(kArchitecture).append(".").append(name);
}

std::string list_text(const Layers &layers) {
    return shape_text(layers);
}

class Reader {
public:
    Reader(const GgufMetadata &metadata, const std::vector<FoundTensor> &found) : metadata_(metadata), found_(found) {}

    ds41_config read() {
        const std::optional<std::string> architecture = metadata_.string("general.architecture");
        DS41_CHECK(architecture && *architecture == kArchitecture, DS41_STATUS_INVALID_FILE,
                   "general.architecture is %s, need \"%s\"", architecture ? quoted(*architecture).c_str() : "missing",
                   kArchitecture);
        ds41_config_init(&config_, sizeof(config_));
        for (const IntegerKey &key : kIntegers)
            if (const auto value = needed(metadata_.integer(key_of(key.name)), key.name))
                config_.*key.member = int32(key.name, *value);
        for (const RealKey &key : kReals)
            if (const auto value = needed(metadata_.real(key_of(key.name)), key.name))
                config_.*key.member = float32(key.name, *value);
        read_scaling();
        read_ratios();
        if (const auto value = needed(metadata_.integer(key_of("context_length")), "context_length"))
            config_.max_seq_len = *value;
        DS41_CHECK(missing_.empty(), DS41_STATUS_INVALID_FILE, "metadata lacks %s", missing_.c_str());

        only_one_kv_head();
        read_sources("kv_source", "compressor_wkv", config_.kv_source_layers, config_.n_kv_source_layers);
        read_sources("index_source", "indexer_wq_b", config_.index_source_layers, config_.n_index_source_layers);
        read_candidates();
        return config_;
    }

private:
    template <typename T> std::optional<T> needed(std::optional<T> value, const char *name) {
        if (!value) missing_.append(missing_.empty() ? "" : ", ").append(key_of(name));
        return value;
    }

    static std::int32_t int32(const char *name, std::int64_t value) {
        DS41_CHECK(value >= 0 && value <= INT32_MAX, DS41_STATUS_INVALID_FILE,
                   "%s is %" PRId64 ", need a value in [0, %d]", key_of(name).c_str(), value, INT32_MAX);
        return static_cast<std::int32_t>(value);
    }
    static float float32(const char *name, double value) {
        DS41_CHECK(std::fabs(value) <= static_cast<double>(FLT_MAX), DS41_STATUS_INVALID_FILE,
                   "%s is %g, need a number that a float holds", key_of(name).c_str(), value);
        return static_cast<float>(value);
    }

    // Without YaRN the compressed layers turn by other angles: a file that does not say is not guessed at.
    void read_scaling() {
        const auto type = needed(metadata_.string(key_of("rope.scaling.type")), "rope.scaling.type");
        DS41_CHECK(!type || *type == "yarn", DS41_STATUS_INVALID_FILE, "%s is %s, need \"yarn\"",
                   key_of("rope.scaling.type").c_str(), quoted(*type).c_str());
        constexpr char kLength[] = "rope.scaling.original_context_length";
        if (const auto value = needed(metadata_.integer(key_of(kLength)), kLength)) config_.original_seq_len = *value;
        const auto fast = metadata_.real(key_of("rope.scaling.yarn_beta_fast"));
        const auto slow = metadata_.real(key_of("rope.scaling.yarn_beta_slow"));
        config_.beta_fast = fast ? float32("rope.scaling.yarn_beta_fast", *fast) : kDefaultBetaFast;
        config_.beta_slow = slow ? float32("rope.scaling.yarn_beta_slow", *slow) : kDefaultBetaSlow;
    }

    void read_ratios() {
        auto ratios = needed(metadata_.integers(key_of("attention.compress_ratios")), "attention.compress_ratios");
        if (!ratios) return;
        // Some conversions list the backbone's ratios alone but carry the draft blocks behind it, whose ratio is 0.
        std::set<std::int64_t> blocks;
        for (const FoundTensor &tensor : found_) blocks.insert(tensor.where.number);
        if (static_cast<std::int64_t>(ratios->size()) == config_.n_layers)
            while (blocks.contains(static_cast<std::int64_t>(ratios->size())) && ratios->size() < DS41_MAX_LAYERS)
                ratios->push_back(0);
        config_.n_compress_ratios = store_list("attention.compress_ratios", *ratios, config_.compress_ratios);
    }

    static std::int32_t store_list(const char *name, const Layers &values, std::int32_t *target) {
        DS41_CHECK(values.size() <= DS41_MAX_LAYERS, DS41_STATUS_INVALID_FILE, "%s has %zu entries, need at most %d",
                   key_of(name).c_str(), values.size(), DS41_MAX_LAYERS);
        for (std::size_t i = 0; i < values.size(); ++i) target[i] = int32(name, values[i]);
        return static_cast<std::int32_t>(values.size());
    }

    void only_one_kv_head() const {
        const auto n = metadata_.integer(key_of("attention.head_count_kv"));
        DS41_CHECK(!n || *n == 1, DS41_STATUS_INVALID_FILE,
                   "%s is %" PRId64 ", need 1 (all heads share one latent row)",
                   key_of("attention.head_count_kv").c_str(), *n);
        const auto width = metadata_.integer(key_of("attention.value_length"));
        DS41_CHECK(!width || *width == config_.head_dim, DS41_STATUS_INVALID_FILE,
                   "%s is %" PRId64 ", need %d, as attention.key_length: keys and values are the same row",
                   key_of("attention.value_length").c_str(), *width, config_.head_dim);
    }

    // The value under whichever of the names is there; all that are there have to agree.
    template <typename Get, typename Text>
    auto agreed(const std::vector<std::string> &names, Get &&get, Text &&text) const -> decltype(get(names[0])) {
        decltype(get(names[0])) value;
        const std::string *from = nullptr;
        for (const std::string &name : names) {
            auto other = get(name);
            if (!other) continue;
            DS41_CHECK(!value || *value == *other, DS41_STATUS_INVALID_FILE,
                       "%s is %s but %s is %s: they have to agree", from->c_str(), text(*value).c_str(), name.c_str(),
                       text(*other).c_str());
            value = std::move(other);
            from = &name;
        }
        return value;
    }

    void read_sources(const std::string &what, const char *member, std::int32_t *target, std::int32_t &count) const {
        std::set<std::int64_t> seen, having; // layers: with any tensor, with the source's
        for (const FoundTensor &tensor : found_) {
            seen.insert(tensor.where.number);
            if (tensor.where.place && std::string_view(tensor.where.place->name) == member)
                having.insert(tensor.where.number);
        }
        const auto listed = agreed(
            {key_of("attention." + what + "_layer_ids"), key_of(what + "_layer_ids"),
             key_of("attention." + what + "_layers")},
            [&](const std::string &key) { return metadata_.integers(key); }, list_text);
        DS41_CHECK(!listed || listed->size() <= DS41_MAX_LAYERS, DS41_STATUS_INVALID_FILE,
                   "the metadata lists %zu %s layers, need at most %d", listed->size(), what.c_str(), DS41_MAX_LAYERS);
        // A layer of which nothing is there is missing, which is for the inventory to say.
        for (const std::int64_t layer : seen) {
            if (!listed) break;
            const bool is_listed = std::find(listed->begin(), listed->end(), layer) != listed->end();
            DS41_CHECK(is_listed == having.contains(layer), DS41_STATUS_INVALID_FILE,
                       "the metadata lists %s layers %s, %s layer %" PRId64 " %s %s", what.c_str(),
                       list_text(*listed).c_str(), is_listed ? "but" : "without", layer,
                       is_listed ? "has no" : "that has", member);
        }
        const Layers layers = listed ? *listed : Layers(having.begin(), having.end());
        count = store_list((what + "_layer_ids").c_str(), layers, target);
    }

    void read_candidates() {
        const auto get = [&](const std::string &key) { return metadata_.integer(key); };
        const auto text = [](std::int64_t value) { return std::to_string(value); };
        const auto source =
            agreed({key_of("attention.indexer.candidate_source_layer"), key_of("attention.candidate_source_layer_id")},
                   get, text);
        const auto blocks =
            agreed({key_of("attention.indexer.candidate_top_k"), key_of("attention.candidate_topk_blocks")}, get, text);
        const auto size = agreed(
            {key_of("attention.indexer.candidate_block_size"), key_of("attention.candidate_block_size")}, get, text);
        config_.candidate_source_layer = -1;
        if (source) {
            DS41_CHECK(*source >= -1 && *source < DS41_MAX_LAYERS, DS41_STATUS_INVALID_FILE,
                       "the candidate source layer is %" PRId64 ", need a value in [-1, %d]", *source,
                       DS41_MAX_LAYERS - 1);
            config_.candidate_source_layer = static_cast<std::int32_t>(*source);
        } else {
            // The first index source of ratio 1.
            for (std::int32_t i = config_.n_index_source_layers - 1; i >= 0; --i) {
                const std::int32_t layer = config_.index_source_layers[i];
                if (layer < config_.n_compress_ratios && config_.compress_ratios[layer] == 1)
                    config_.candidate_source_layer = layer;
            }
        }
        if (config_.candidate_source_layer < 0) return;
        config_.candidate_topk_blocks =
            blocks ? int32("attention.candidate_topk_blocks", *blocks) : kDefaultCandidateBlocks;
        config_.candidate_block_size =
            size ? int32("attention.candidate_block_size", *size) : kDefaultCandidateBlockSize;
    }

    const GgufMetadata &metadata_;
    const std::vector<FoundTensor> &found_;
    ds41_config config_;
    std::string missing_;
};

} // namespace

ds41_config gguf_config(const GgufMetadata &metadata, const std::vector<FoundTensor> &found) {
    return Reader(metadata, found).read();
}

} // namespace ds41
