#include "checkpoint/quantization_json.h"

#include "checkpoint/json_reader.h"
#include "checkpoint/text.h"
#include "error.h"
#include "numeric/fp8_linear.h"

#include <string>

namespace ds41 {

namespace {

constexpr int kMaxDepth = 64;

// Follows the path of keys to the value that comes next; lists count as one level.
class QuantizationReader final : public JsonEvents {
public:
    void begin_object() override { enter("an object"); }
    void end_object() override { leave(); }
    void begin_list() override {
        if (at("weight_block_size")) list_depth_ = depth_ + 1, n_entries_ = 0;
        enter("a list");
    }
    void end_list() override {
        if (depth_ == list_depth_) {
            list_depth_ = 0;
            DS41_CHECK(n_entries_ == 2, DS41_STATUS_INVALID_FILE,
                       "quantization_config.weight_block_size has %d entries, need 2", n_entries_);
        }
        leave();
    }
    void key(std::string &text) override {
        if (depth_ == scheme_depth_) key_ = text;
        at_scheme_ = text == "quantization_config" && (depth_ == 1 || depth_ == text_depth_);
        at_text_ = text == "text_config" && depth_ == 1;
    }
    void string(std::string &text) override {
        need("quant_method", "fp8", text);
        need("scale_fmt", "ue8m0", text);
        value("a string");
    }
    void number(const JsonNumber &number) override {
        if (depth_ == list_depth_ && list_depth_ > 0) {
            ++n_entries_;
            DS41_CHECK(number.real == kFp8WeightBlock, DS41_STATUS_UNSUPPORTED,
                       "quantization_config.weight_block_size holds %s, need [%d, %d]", number_text(number).c_str(),
                       kFp8WeightBlock, kFp8WeightBlock);
        } else {
            value("a number");
        }
    }
    void boolean(bool) override { value("a boolean"); }
    void null() override { at_scheme_ = at_text_ = false, key_.clear(); }

private:
    bool at(std::string_view name) const { return scheme_depth_ > 0 && depth_ == scheme_depth_ && key_ == name; }

    void need(const char *name, std::string_view expected, const std::string &text) const {
        if (!at(name)) return;
        DS41_CHECK(text == expected, DS41_STATUS_UNSUPPORTED, "quantization_config.%s is %s, need \"%.*s\"", name,
                   quoted(text).c_str(), static_cast<int>(expected.size()), expected.data());
    }

    void value(const char *what) const {
        const bool is_string = std::string_view(what) == "a string", is_list = std::string_view(what) == "a list";
        for (const char *name : {"quant_method", "scale_fmt"})
            DS41_CHECK(!at(name) || is_string, DS41_STATUS_INVALID_FILE, "quantization_config.%s is %s, need a string",
                       name, what);
        DS41_CHECK(!at("weight_block_size") || is_list, DS41_STATUS_INVALID_FILE,
                   "quantization_config.weight_block_size is %s, need a list of two numbers", what);
        DS41_CHECK(list_depth_ == 0 || depth_ != list_depth_, DS41_STATUS_INVALID_FILE,
                   "quantization_config.weight_block_size holds %s, need two numbers", what);
    }

    void enter(const char *what) {
        if (list_depth_ != depth_ + 1) value(what);
        ++depth_;
        if (at_scheme_) scheme_depth_ = depth_;
        if (at_text_) text_depth_ = depth_;
        at_scheme_ = at_text_ = false;
        key_.clear();
    }
    void leave() {
        if (depth_ == scheme_depth_) scheme_depth_ = 0;
        if (depth_ == text_depth_) text_depth_ = 0;
        --depth_;
    }

    int depth_ = 0, scheme_depth_ = 0, text_depth_ = 0, list_depth_ = 0, n_entries_ = 0;
    bool at_scheme_ = false, at_text_ = false;
    std::string key_; // The last key of the quantization_config that is open.
};

} // namespace

void check_quantization_json(std::string_view json) {
    QuantizationReader reader;
    read_json(json, "the configuration", kMaxDepth, reader);
}

} // namespace ds41
