#include "checkpoint/safetensors_header.h"

#include "checkpoint/json_reader.h"
#include "checkpoint/text.h"
#include "error.h"

#include <algorithm>
#include <cinttypes>

namespace ds41 {

namespace {

constexpr int kMaxDepth = 3;    // Header, entry, list.
constexpr size_t kMaxDims = 64; // What numpy and torch can hold; keeps a list of a million sizes from being stored.
constexpr char kMetadataName[] = "__metadata__";

constexpr SafetensorsDtype kDtypes[] = {
    {"BOOL", 1, DS41_DTYPE_NONE},
    {"U8", 1, DS41_DTYPE_U8},
    {"I8", 1, DS41_DTYPE_I8},
    {"F8_E5M2", 1, DS41_DTYPE_NONE},
    {"F8_E4M3", 1, DS41_DTYPE_FP8_E4M3},
    {"F8_E8M0", 1, DS41_DTYPE_UE8M0},
    {"I16", 2, DS41_DTYPE_NONE},
    {"U16", 2, DS41_DTYPE_NONE},
    {"F16", 2, DS41_DTYPE_F16},
    {"BF16", 2, DS41_DTYPE_BF16},
    {"I32", 4, DS41_DTYPE_I32},
    {"U32", 4, DS41_DTYPE_NONE},
    {"F32", 4, DS41_DTYPE_F32},
    {"I64", 8, DS41_DTYPE_NONE},
    {"U64", 8, DS41_DTYPE_NONE},
    {"F64", 8, DS41_DTYPE_NONE},
};

// Follows the fixed grammar of the header: {name: {dtype, shape, data_offsets}, ..., __metadata__: {key: text, ...}}.
class HeaderReader final : public JsonEvents {
public:
    explicit HeaderReader(std::span<const std::byte> data) : data_(data) {}

    SafetensorsHeader take() {
        const char *twice = header_.metadata.sort();
        DS41_CHECK(!twice, DS41_STATUS_INVALID_FILE, "__metadata__: the key %s appears twice", quoted(twice).c_str());
        return std::move(header_);
    }

    void begin_object() override {
        if (place_ == Place::kOutside) {
            place_ = Place::kHeader;
        } else if (place_ == Place::kHeader && in_metadata_) {
            place_ = Place::kMetadata;
        } else if (place_ == Place::kHeader) {
            place_ = Place::kEntry;
        } else {
            refuse("an object");
        }
    }

    void end_object() override {
        if (place_ == Place::kEntry) finish_entry();
        place_ = place_ == Place::kHeader ? Place::kOutside : Place::kHeader;
    }

    void begin_list() override {
        if (place_ == Place::kEntry && key_ == "shape") {
            place_ = Place::kShape;
        } else if (place_ == Place::kEntry && key_ == "data_offsets") {
            place_ = Place::kOffsets;
        } else {
            refuse("a list");
        }
    }

    void end_list() override { place_ = Place::kEntry; }

    void key(std::string &text) override {
        DS41_CHECK(text.find('\0') == std::string::npos, DS41_STATUS_INVALID_FILE, "the name %s holds a NUL",
                   quoted(text).c_str());
        if (place_ == Place::kHeader) {
            begin_entry(text);
        } else if (place_ == Place::kEntry) {
            begin_member(text);
        } else {
            key_ = std::move(text);
        }
    }

    void string(std::string &text) override {
        if (place_ == Place::kMetadata) {
            DS41_CHECK(text.find('\0') == std::string::npos, DS41_STATUS_INVALID_FILE,
                       "__metadata__: the value of %s holds a NUL", quoted(key_).c_str());
            header_.metadata.add(key_, text);
        } else if (place_ == Place::kEntry && key_ == "dtype") {
            dtype_ = find_safetensors_dtype(text);
            DS41_CHECK(dtype_, DS41_STATUS_INVALID_FILE, "tensor %s: the dtype %s is unknown", name().c_str(),
                       quoted(text).c_str());
        } else {
            refuse("a string");
        }
    }

    void number(const JsonNumber &number) override {
        if (place_ != Place::kShape && place_ != Place::kOffsets) refuse("a number");
        DS41_CHECK(number.is_integer && number.integer >= 0, DS41_STATUS_INVALID_FILE,
                   "tensor %s: %s holds %s, need integers from 0 to 9223372036854775807", name().c_str(), key_.c_str(),
                   number_text(number).c_str());
        if (place_ == Place::kShape) {
            DS41_CHECK(shape_.size() < kMaxDims, DS41_STATUS_INVALID_FILE,
                       "tensor %s: shape has more than %zu dimensions", name().c_str(), kMaxDims);
            shape_.push_back(number.integer);
        } else {
            if (n_offsets_ < 2) offsets_[n_offsets_] = static_cast<uint64_t>(number.integer);
            ++n_offsets_;
        }
    }

    void boolean(bool) override { refuse("a boolean"); }
    void null() override { refuse("null"); }

private:
    enum class Place { kOutside, kHeader, kMetadata, kEntry, kShape, kOffsets };

    std::string name() const { return quoted(entry_.name); }

    // A value of the wrong kind: says where it stands and what belongs there.
    [[noreturn]] void refuse(const char *what) const {
        switch (place_) {
        case Place::kOutside:
            throw Error(DS41_STATUS_INVALID_FILE, "the header is %s, need an object", what);
        case Place::kHeader:
            if (in_metadata_) throw Error(DS41_STATUS_INVALID_FILE, "__metadata__ is %s, need an object", what);
            throw Error(DS41_STATUS_INVALID_FILE,
                        "tensor %s: the entry is %s, need an object with dtype, shape and data_offsets", name().c_str(),
                        what);
        case Place::kMetadata:
            throw Error(DS41_STATUS_INVALID_FILE, "__metadata__: the value of %s is %s, need a string",
                        quoted(key_).c_str(), what);
        case Place::kEntry:
            throw Error(DS41_STATUS_INVALID_FILE, "tensor %s: %s is %s, need %s", name().c_str(), key_.c_str(), what,
                        key_ == "dtype" ? "a string" : "a list of integers");
        case Place::kShape:
        case Place::kOffsets:
            break;
        }
        throw Error(DS41_STATUS_INVALID_FILE, "tensor %s: %s holds %s, need integers", name().c_str(), key_.c_str(),
                    what);
    }

    void begin_entry(std::string &text) {
        in_metadata_ = text == kMetadataName;
        if (in_metadata_) {
            DS41_CHECK(!has_metadata_, DS41_STATUS_INVALID_FILE, "__metadata__ appears twice");
            has_metadata_ = true;
            return;
        }
        entry_ = {};
        entry_.name = std::move(text);
        dtype_ = nullptr;
        shape_.clear();
        n_offsets_ = 0;
        has_dtype_ = has_shape_ = has_offsets_ = false;
    }

    void begin_member(std::string &text) {
        bool *seen = text == "dtype"          ? &has_dtype_
                     : text == "shape"        ? &has_shape_
                     : text == "data_offsets" ? &has_offsets_
                                              : nullptr;
        DS41_CHECK(seen, DS41_STATUS_INVALID_FILE, "tensor %s: unknown key %s, need dtype, shape and data_offsets",
                   name().c_str(), quoted(text).c_str());
        DS41_CHECK(!*seen, DS41_STATUS_INVALID_FILE, "tensor %s: %s appears twice", name().c_str(), text.c_str());
        *seen = true;
        key_ = std::move(text);
    }

    void finish_entry() {
        const char *missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : !has_offsets_ ? "data_offsets" : nullptr;
        DS41_CHECK(!missing, DS41_STATUS_INVALID_FILE, "tensor %s: %s is missing", name().c_str(), missing);
        DS41_CHECK(n_offsets_ == 2, DS41_STATUS_INVALID_FILE, "tensor %s: data_offsets has %zu entries, need 2",
                   name().c_str(), n_offsets_);

        const auto [begin, end] = offsets_;
        DS41_CHECK(begin <= end, DS41_STATUS_INVALID_FILE,
                   "tensor %s: data_offsets [%" PRIu64 ", %" PRIu64 "] begin after their end", name().c_str(), begin,
                   end);
        DS41_CHECK(end <= data_.size(), DS41_STATUS_INVALID_FILE,
                   "tensor %s: data_offsets [%" PRIu64 ", %" PRIu64 "] end beyond the file's %zu bytes of data",
                   name().c_str(), begin, end, data_.size());
        const uint64_t n_bytes = bytes_of_shape();
        DS41_CHECK(end - begin == n_bytes, DS41_STATUS_INVALID_FILE,
                   "tensor %s: data_offsets [%" PRIu64 ", %" PRIu64 "] span %" PRIu64 " bytes, need %" PRIu64
                   " (%s, shape %s)",
                   name().c_str(), begin, end, end - begin, n_bytes, dtype_->name, shape_text(shape_).c_str());

        entry_.dtype = dtype_->name;
        entry_.shape.assign(shape_.begin(), shape_.end());
        entry_.data = data_.data() + begin;
        entry_.n_bytes = n_bytes;
        header_.entries.push_back(std::move(entry_));
    }

    uint64_t bytes_of_shape() const {
        uint64_t n_bytes = dtype_->n_bytes;
        for (const int64_t size : shape_)
            DS41_CHECK(!__builtin_mul_overflow(n_bytes, static_cast<uint64_t>(size), &n_bytes),
                       DS41_STATUS_INVALID_FILE, "tensor %s: %s of shape %s takes more bytes than 64 bits can count",
                       name().c_str(), dtype_->name, shape_text(shape_).c_str());
        return n_bytes;
    }

    std::span<const std::byte> data_;
    SafetensorsHeader header_;
    Place place_ = Place::kOutside;
    bool in_metadata_ = false, has_metadata_ = false;
    std::string key_; // Of the entry or of __metadata__.

    // The entry being read.
    SafetensorsEntry entry_;
    const SafetensorsDtype *dtype_ = nullptr;
    std::vector<int64_t> shape_;
    uint64_t offsets_[2] = {};
    size_t n_offsets_ = 0;
    bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

} // namespace

const SafetensorsDtype *find_safetensors_dtype(std::string_view name) {
    const auto *found = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                     [name](const SafetensorsDtype &known) { return name == known.name; });
    return found == std::end(kDtypes) ? nullptr : found;
}

void SafetensorsMetadata::add(std::string_view key, std::string_view value) {
    Pair pair = {};
    pair.key = static_cast<uint32_t>(text_.size());
    text_.append(key).push_back('\0');
    pair.value = static_cast<uint32_t>(text_.size());
    text_.append(value).push_back('\0');
    pairs_.push_back(pair);
}

const char *SafetensorsMetadata::sort() {
    const auto key = [this](const Pair &pair) { return std::string_view(text_.c_str() + pair.key); };
    std::sort(pairs_.begin(), pairs_.end(), [&](const Pair &a, const Pair &b) { return key(a) < key(b); });
    const auto twice = std::adjacent_find(pairs_.begin(), pairs_.end(),
                                          [&](const Pair &a, const Pair &b) { return key(a) == key(b); });
    return twice == pairs_.end() ? nullptr : text_.c_str() + twice->key;
}

const char *SafetensorsMetadata::find(std::string_view key) const {
    const auto found =
        std::lower_bound(pairs_.begin(), pairs_.end(), key, [this](const Pair &pair, std::string_view wanted) {
            return text_.c_str() + pair.key < wanted;
        });
    if (found == pairs_.end() || text_.c_str() + found->key != key) return nullptr;
    return text_.c_str() + found->value;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::span<const std::byte> data) {
    DS41_CHECK(json.starts_with('{'), DS41_STATUS_INVALID_FILE, "the header does not begin with '{'");
    const size_t last = json.find_last_not_of(' ');
    DS41_CHECK(json[last] == '}', DS41_STATUS_INVALID_FILE,
               "the header does not end with '}', followed by nothing but spaces");
    HeaderReader reader(data);
    read_json(json.substr(0, last + 1), "the header", kMaxDepth, reader);
    return reader.take();
}

} // namespace ds41
