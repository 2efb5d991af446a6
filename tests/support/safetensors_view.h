// A golden file as typed arrays: finds it, checks each tensor's dtype against the C++ type asked for, and copies the
// values out with their shape. Files are in DS41_FIXTURES (environment), else where the build says.
#pragma once

#include "checkpoint/safetensors.h"
#include "numeric/bf16.h"
#include "support/compare.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ds41::test {

inline std::string fixture_path(const std::string &file_name) {
    const char *folder = std::getenv("DS41_FIXTURES");
#ifdef DS41_FIXTURE_DIR
    if (!folder || !*folder) folder = DS41_FIXTURE_DIR;
#endif
    if (!folder || !*folder) throw std::runtime_error("set DS41_FIXTURES to the folder of the golden files");
    return std::string(folder) + "/" + file_name;
}

template <class T> struct Array {
    std::vector<T> values;
    Shape shape;

    std::size_t rows() const { return static_cast<std::size_t>(shape.at(0)); }
    std::size_t cols() const { return static_cast<std::size_t>(shape.at(1)); }
    const T *row(std::size_t r) const { return values.data() + r * cols(); }
};

// Dtypes that a C++ type may view: fp8 and ue8m0 codes are bytes, fp16 is read as its bits.
template <class T> bool holds(std::string_view dtype);
template <> inline bool holds<float>(std::string_view dtype) {
    return dtype == "F32";
}
template <> inline bool holds<Bf16>(std::string_view dtype) {
    return dtype == "BF16";
}
template <> inline bool holds<std::int32_t>(std::string_view dtype) {
    return dtype == "I32";
}
template <> inline bool holds<std::int8_t>(std::string_view dtype) {
    return dtype == "I8";
}
template <> inline bool holds<std::uint16_t>(std::string_view dtype) {
    return dtype == "F16";
}
template <> inline bool holds<std::uint8_t>(std::string_view dtype) {
    return dtype == "U8" || dtype == "F8_E4M3" || dtype == "F8_E8M0";
}

class FixtureFile {
public:
    // `name` without the extension.
    explicit FixtureFile(const std::string &name) : file_(fixture_path(name + ".safetensors")) {}

    // Copies: the files do not align tensors to their elements.
    template <class T> Array<T> get(const std::string &name) const {
        const SafetensorsEntry *entry = file_.find(name);
        if (!entry) throw std::runtime_error("no tensor " + name);
        if (!holds<T>(entry->dtype))
            throw std::runtime_error(name + " is " + std::string(entry->dtype) + ", not what was asked for");
        Array<T> array;
        array.shape = entry->shape;
        array.values.resize(entry->n_bytes / sizeof(T));
        if (!array.values.empty()) std::memcpy(array.values.data(), entry->data, entry->n_bytes);
        return array;
    }

private:
    SafetensorsFile file_;
};

} // namespace ds41::test
