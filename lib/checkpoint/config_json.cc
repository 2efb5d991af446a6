// The keys of both forms stand in one table with the member that each fills. A first pass over the text collects what
// is written under them, a second one over the table stores it: which form applies is known only at the end.
#include "checkpoint/config_json.h"

#include "checkpoint/json_reader.h"
#include "checkpoint/text.h"
#include "error.h"

#include <cfloat>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace ds41 {

namespace {

constexpr int kMaxDepth = 64; // The release nests 4 deep; other keys may hold anything reasonable.
constexpr int64_t kDefaultMaxSeqLen = 1048576;
constexpr char kTextConfig[] = "text_config";
constexpr char kRopeScaling[] = "rope_scaling";

struct List {
    int32_t (ds41_config::*values)[DS41_MAX_LAYERS];
    int32_t ds41_config::*count;
};

// No member: a variant of the model that we cannot compute, refused rather than ignored.
struct Only {
    enum Value { kOne, kFalse, kYarn } value;
};

using Member = std::variant<int32_t ds41_config::*, int64_t ds41_config::*, float ds41_config::*, List, Only>;

enum class Need { kAlways, kWithCandidates, kNever };

struct Key {
    const char *release;   // Inside text_config.
    const char *reference; // At the top level; NULL where that form has none.
    Member member;
    Need need = Need::kAlways;
    bool in_rope_scaling = false; // The release's name is one of text_config.rope_scaling.
};

using Config = ds41_config;

constexpr Key kKeys[] = {
    {"num_hidden_layers", "n_layers", &Config::n_layers},
    {"hidden_size", "dim", &Config::dim},
    {"num_attention_heads", "n_heads", &Config::n_heads},
    {"head_dim", "head_dim", &Config::head_dim},
    {"qk_rope_head_dim", "rope_head_dim", &Config::rope_head_dim},
    {"q_lora_rank", "q_lora_rank", &Config::q_lora_rank},
    {"o_groups", "o_groups", &Config::o_groups},
    {"o_lora_rank", "o_lora_rank", &Config::o_lora_rank},
    {"sliding_window", "window_size", &Config::window_size},
    {"compress_ratios", "compress_ratios", List{&Config::compress_ratios, &Config::n_compress_ratios}},
    {"kv_source_layer_ids", "kv_source_layers", List{&Config::kv_source_layers, &Config::n_kv_source_layers}},
    {"index_source_layer_ids", "index_source_layers",
     List{&Config::index_source_layers, &Config::n_index_source_layers}},
    {"index_n_heads", "index_n_heads", &Config::index_n_heads},
    {"index_head_dim", "index_head_dim", &Config::index_head_dim},
    {"index_topk", "index_topk", &Config::index_topk},
    {"candidate_source_layer_id", "candidate_source_layer", &Config::candidate_source_layer, Need::kNever},
    {"candidate_topk_blocks", "candidate_topk_blocks", &Config::candidate_topk_blocks, Need::kWithCandidates},
    {"candidate_block_size", "candidate_block_size", &Config::candidate_block_size, Need::kWithCandidates},
    {"rms_norm_eps", "norm_eps", &Config::norm_eps},
    {"rope_theta", "rope_theta", &Config::rope_theta},
    {"compress_rope_theta", "compress_rope_theta", &Config::compress_rope_theta},
    {"factor", "rope_factor", &Config::rope_factor, Need::kAlways, true},
    {"beta_fast", "beta_fast", &Config::beta_fast, Need::kAlways, true},
    {"beta_slow", "beta_slow", &Config::beta_slow, Need::kAlways, true},
    {"original_max_position_embeddings", "original_seq_len", &Config::original_seq_len, Need::kAlways, true},
    {"max_position_embeddings", "max_seq_len", &Config::max_seq_len, Need::kNever},
    {"num_key_value_heads", nullptr, Only{Only::kOne}, Need::kNever},
    {"attention_bias", nullptr, Only{Only::kFalse}, Need::kNever},
    {"rope_type", nullptr, Only{Only::kYarn}, Need::kNever, true},
    {"type", nullptr, Only{Only::kYarn}, Need::kNever, true}, // An older name of rope_type.
};
constexpr size_t kNKeys = std::size(kKeys);

// What the text holds under one key.
struct Value {
    enum Kind { kMissing, kNull, kBoolean, kNumber, kString, kList, kObject } kind = kMissing;
    bool twice = false;
    bool boolean = false;
    JsonNumber number;
    std::string text;
    std::vector<JsonNumber> list; // The first DS41_MAX_LAYERS entries.
    size_t n_entries = 0;
    const char *foreign_entry = nullptr; // The first entry that is no number.

    bool given() const { return kind != kMissing && kind != kNull; }
    static const char *name_of(Kind kind) {
        constexpr const char *kNames[] = {"missing",  "null",   "a boolean", "a number",
                                          "a string", "a list", "an object"};
        return kNames[kind];
    }
    const char *kind_name() const { return name_of(kind); }
};

class ConfigReader final : public JsonEvents {
public:
    bool is_release() const { return has_text_config_; }
    const Value &value(size_t key) const { return is_release() ? nested_[key] : flat_[key]; }

    void begin_object() override {
        if (ignored_ > 0 || list_) return enter_ignored("an object");
        if (scope_ == Scope::kOutside) {
            scope_ = Scope::kTop;
        } else if (scope_ == Scope::kTop && at_text_config_) {
            scope_ = Scope::kText;
            has_text_config_ = true;
        } else if (scope_ == Scope::kText && at_rope_scaling_) {
            scope_ = Scope::kScaling;
        } else {
            set(Value::kObject);
            ++ignored_;
        }
    }

    void end_object() override {
        if (ignored_ > 0) {
            --ignored_;
            return;
        }
        scope_ = scope_ == Scope::kScaling ? Scope::kText : scope_ == Scope::kText ? Scope::kTop : Scope::kOutside;
    }

    void begin_list() override {
        if (ignored_ > 0 || list_) return enter_ignored("a list");
        list_ = set(Value::kList);
        if (!list_) ++ignored_;
    }

    void end_list() override {
        if (ignored_ > 0)
            --ignored_;
        else
            list_ = nullptr;
    }

    void key(std::string &text) override {
        if (ignored_ > 0) return;
        target_ = nullptr;
        at_text_config_ = scope_ == Scope::kTop && text == kTextConfig;
        at_rope_scaling_ = scope_ == Scope::kText && text == kRopeScaling;
        if (at_text_config_) refuse_twice(&had_text_config_, kTextConfig);
        if (at_rope_scaling_) refuse_twice(&had_rope_scaling_, "text_config.rope_scaling");
        for (size_t i = 0; i < kNKeys; ++i) {
            const char *name = scope_ == Scope::kTop ? kKeys[i].reference : kKeys[i].release;
            if (scope_ != Scope::kTop && kKeys[i].in_rope_scaling != (scope_ == Scope::kScaling)) continue;
            if (name && text == name) target_ = scope_ == Scope::kTop ? &flat_[i] : &nested_[i];
        }
        if (target_) target_->twice = target_->kind != Value::kMissing;
    }

    void string(std::string &text) override {
        if (Value *value = scalar(Value::kString)) value->text = std::move(text);
    }

    void number(const JsonNumber &number) override {
        if (ignored_ == 0 && list_) {
            if (list_->list.size() < DS41_MAX_LAYERS) list_->list.push_back(number);
            ++list_->n_entries;
        } else if (Value *value = scalar(Value::kNumber)) {
            value->number = number;
        }
    }

    void boolean(bool boolean) override {
        if (Value *value = scalar(Value::kBoolean)) value->boolean = boolean;
    }

    void null() override { scalar(Value::kNull); }

private:
    enum class Scope { kOutside, kTop, kText, kScaling };

    static void refuse_twice(bool *seen, const char *name) {
        DS41_CHECK(!*seen, DS41_STATUS_INVALID_FILE, "the key %s appears twice", name);
        *seen = true;
    }

    void enter_ignored(const char *what) {
        if (ignored_ == 0) foreign_entry(what);
        ++ignored_;
    }

    void foreign_entry(const char *what) {
        if (!list_->foreign_entry) list_->foreign_entry = what;
        ++list_->n_entries;
    }

    // The value that `kind` belongs to, or NULL where it is of no concern.
    Value *scalar(Value::Kind kind) {
        if (ignored_ > 0) return nullptr;
        if (list_) {
            foreign_entry(Value::name_of(kind));
            return nullptr;
        }
        return set(kind);
    }

    Value *set(Value::Kind kind) {
        const char *what = Value::name_of(kind);
        DS41_CHECK(scope_ != Scope::kOutside, DS41_STATUS_INVALID_FILE, "the configuration is %s, need an object",
                   what);
        DS41_CHECK((!at_text_config_ && !at_rope_scaling_) || kind == Value::kNull, DS41_STATUS_INVALID_FILE,
                   "the key %s is %s, need an object", at_text_config_ ? kTextConfig : "text_config.rope_scaling",
                   what);
        if (target_) target_->kind = kind;
        return target_;
    }

    Scope scope_ = Scope::kOutside;
    bool has_text_config_ = false; // As an object.
    bool at_text_config_ = false, at_rope_scaling_ = false;
    bool had_text_config_ = false, had_rope_scaling_ = false;
    int ignored_ = 0;         // Depth inside something that is of no concern.
    Value *target_ = nullptr; // Of the last key.
    Value *list_ = nullptr;   // Open list.
    Value nested_[kNKeys];
    Value flat_[kNKeys];
};

// Stores one value into its member. `name` is the key as the text spells it.
class Store {
public:
    Store(ds41_config &config, const char *name, const Value &value) : config_(config), name_(name), value_(value) {}

    void operator()(int32_t ds41_config::*member) const { config_.*member = integer<int32_t>(number("an integer")); }
    void operator()(int64_t ds41_config::*member) const { config_.*member = integer<int64_t>(number("an integer")); }

    void operator()(float ds41_config::*member) const {
        const double real = number("a number").real;
        const bool vanishes = real != 0.0 && static_cast<float>(real) == 0.0f;
        DS41_CHECK(std::fabs(real) <= static_cast<double>(FLT_MAX) && !vanishes, DS41_STATUS_INVALID_CONFIG,
                   "%s is %g, need a number that a float holds", name_, real);
        config_.*member = static_cast<float>(real);
    }

    void operator()(const List &list) const {
        DS41_CHECK(value_.kind == Value::kList, DS41_STATUS_INVALID_FILE, "%s is %s, need a list of integers", name_,
                   value_.kind_name());
        DS41_CHECK(!value_.foreign_entry, DS41_STATUS_INVALID_FILE, "%s holds %s, need integers", name_,
                   value_.foreign_entry);
        DS41_CHECK(value_.n_entries <= DS41_MAX_LAYERS, DS41_STATUS_INVALID_CONFIG,
                   "%s has %zu entries, need at most %d (DS41_MAX_LAYERS)", name_, value_.n_entries, DS41_MAX_LAYERS);
        for (size_t i = 0; i < value_.list.size(); ++i) (config_.*list.values)[i] = integer<int32_t>(value_.list[i]);
        config_.*list.count = static_cast<int32_t>(value_.list.size());
    }

    void operator()(const Only &only) const {
        switch (only.value) {
        case Only::kOne:
            DS41_CHECK(integer<int32_t>(number("an integer")) == 1, DS41_STATUS_INVALID_CONFIG,
                       "%s is %s, need 1 (all heads share one latent row)", name_, number_text(value_.number).c_str());
            break;
        case Only::kFalse:
            DS41_CHECK(value_.kind == Value::kBoolean, DS41_STATUS_INVALID_FILE, "%s is %s, need a boolean", name_,
                       value_.kind_name());
            DS41_CHECK(!value_.boolean, DS41_STATUS_INVALID_CONFIG, "%s is true, need false (projections have no bias)",
                       name_);
            break;
        case Only::kYarn:
            DS41_CHECK(value_.kind == Value::kString, DS41_STATUS_INVALID_FILE, "%s is %s, need a string", name_,
                       value_.kind_name());
            DS41_CHECK(value_.text == "yarn", DS41_STATUS_INVALID_CONFIG, "%s is %s, need \"yarn\"", name_,
                       quoted(value_.text).c_str());
            break;
        }
    }

private:
    const JsonNumber &number(const char *need) const {
        DS41_CHECK(value_.kind == Value::kNumber, DS41_STATUS_INVALID_FILE, "%s is %s, need %s", name_,
                   value_.kind_name(), need);
        return value_.number;
    }

    // 32.0 is an integer, 32.5 is none.
    template <typename T> T integer(const JsonNumber &number) const {
        constexpr int64_t kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
        DS41_CHECK(number.is_integer || std::trunc(number.real) == number.real, DS41_STATUS_INVALID_FILE,
                   "%s is %s, need an integer", name_, number_text(number).c_str());
        const std::optional<int64_t> value = number.is_integer ? number.integer : whole(number.real);
        DS41_CHECK(value && *value >= kMin && *value <= kMax, DS41_STATUS_INVALID_CONFIG,
                   "%s is %s, need a value in [%" PRId64 ", %" PRId64 "]", name_, number_text(number).c_str(), kMin,
                   kMax);
        return static_cast<T>(*value);
    }

    // Doubles are spaced by more than 1 beyond 2^53: a number out there was not meant as a count.
    static std::optional<int64_t> whole(double real) {
        if (std::fabs(real) > 9007199254740992.0) return std::nullopt;
        return static_cast<int64_t>(real);
    }

    ds41_config &config_;
    const char *name_;
    const Value &value_;
};

} // namespace

ds41_config parse_config_json(std::string_view json) {
    ConfigReader reader;
    read_json(json, "the configuration", kMaxDepth, reader);

    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    config.max_seq_len = kDefaultMaxSeqLen;
    for (size_t i = 0; i < kNKeys; ++i) {
        const Key &key = kKeys[i];
        const Value &value = reader.value(i);
        char name[80];
        if (reader.is_release())
            std::snprintf(name, sizeof name, "%s.%s%s", kTextConfig, key.in_rope_scaling ? "rope_scaling." : "",
                          key.release);
        else
            std::snprintf(name, sizeof name, "%s", key.reference ? key.reference : "");

        DS41_CHECK(!value.twice, DS41_STATUS_INVALID_FILE, "the key %s appears twice", name);
        if (value.given()) {
            std::visit(Store(config, name, value), key.member);
            continue;
        }
        // The table lists candidate_source_layer before what depends on it.
        const bool needed =
            key.need == Need::kAlways || (key.need == Need::kWithCandidates && config.candidate_source_layer != -1);
        DS41_CHECK(!needed, DS41_STATUS_INVALID_FILE, "the key %s is %s", name, value.kind_name());
    }
    return config;
}

} // namespace ds41
