#include "checkpoint/index_json.h"

#include "checkpoint/json_reader.h"
#include "checkpoint/text.h"
#include "error.h"

#include <algorithm>

namespace ds41 {

namespace {

constexpr int kMaxDepth = 64;
constexpr char kWeightMap[] = "weight_map";

// A name that walks out of the folder would have us open files that nobody meant.
bool is_plain_name(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

class IndexReader final : public JsonEvents {
public:
    std::vector<IndexEntry> entries;
    bool has_map() const { return has_map_; }

    void begin_object() override {
        refuse_value("an object", depth_ == 1 && at_map_);
        if (depth_ == 1 && at_map_) in_map_ = true;
        ++depth_;
    }
    void end_object() override {
        --depth_;
        if (depth_ == 1) in_map_ = false;
    }
    void begin_list() override {
        refuse_value("a list", false);
        ++depth_;
    }
    void end_list() override { --depth_; }

    void key(std::string &text) override {
        if (depth_ == 1) {
            at_map_ = text == kWeightMap;
            DS41_CHECK(!at_map_ || !has_map_, DS41_STATUS_INVALID_FILE, "the key %s appears twice", kWeightMap);
            has_map_ = has_map_ || at_map_;
        } else if (in_map_ && depth_ == 2) {
            entries.push_back({std::move(text), {}});
        }
    }

    void string(std::string &text) override {
        if (!in_map_ || depth_ != 2) return refuse_value("a string", false);
        DS41_CHECK(is_plain_name(text), DS41_STATUS_INVALID_FILE,
                   "%s[%s] is %s, need the name of a file in the same folder", kWeightMap,
                   quoted(entries.back().tensor).c_str(), quoted(text).c_str());
        entries.back().file = std::move(text);
    }
    void number(const JsonNumber &) override { refuse_value("a number", false); }
    void boolean(bool) override { refuse_value("a boolean", false); }
    void null() override { refuse_value("null", false); }

private:
    void refuse_value(const char *what, bool allowed) const {
        if (allowed) return;
        DS41_CHECK(depth_ > 0 || std::string_view(what) == "an object", DS41_STATUS_INVALID_FILE,
                   "the index is %s, need an object", what);
        DS41_CHECK(depth_ != 1 || !at_map_, DS41_STATUS_INVALID_FILE, "%s is %s, need an object", kWeightMap, what);
        DS41_CHECK(!in_map_ || depth_ != 2, DS41_STATUS_INVALID_FILE, "%s[%s] is %s, need a file's name", kWeightMap,
                   in_map_ && !entries.empty() ? quoted(entries.back().tensor).c_str() : "", what);
    }

    int depth_ = 0;
    bool at_map_ = false, in_map_ = false, has_map_ = false;
};

} // namespace

std::vector<IndexEntry> parse_safetensors_index(std::string_view json) {
    IndexReader reader;
    read_json(json, "the index", kMaxDepth, reader);
    DS41_CHECK(reader.has_map(), DS41_STATUS_INVALID_FILE, "the key %s is missing", kWeightMap);
    std::vector<IndexEntry> entries = std::move(reader.entries);
    std::sort(entries.begin(), entries.end(),
              [](const IndexEntry &a, const IndexEntry &b) { return a.tensor < b.tensor; });
    const auto twice = std::adjacent_find(
        entries.begin(), entries.end(), [](const IndexEntry &a, const IndexEntry &b) { return a.tensor == b.tensor; });
    DS41_CHECK(twice == entries.end(), DS41_STATUS_INVALID_FILE, "%s holds tensor %s twice", kWeightMap,
               quoted(twice->tensor).c_str());
    return entries;
}

} // namespace ds41
