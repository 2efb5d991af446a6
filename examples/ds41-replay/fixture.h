// The files of one case as one set of tensors: finds the parts of a split case and lends every tensor, aligned.
#pragma once

#include "api.h"
#include "array.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace replay {

/// A tensor and, where the file does not align it, the aligned copy that the view points to.
struct Loaded {
    ds41_tensor view;
    std::vector<uint64_t> copy;
};

/// NAME.KofN.safetensors gives the N parts of the case, any other path itself.
std::vector<std::string> parts_of(const std::string &path);

class Fixture {
public:
    /// Throws CannotRun when a part is missing, no safetensors file, of another case, or repeats a tensor.
    explicit Fixture(const std::vector<std::string> &paths);

    /// Every tensor's name, ascending.
    const std::map<std::string, size_t, std::less<>> &names() const { return part_of_; }
    bool has(std::string_view name) const { return part_of_.find(name) != part_of_.end(); }

    /// Valid as long as both the result and the fixture live.
    Loaded load(const std::string &name) const;
    Array array(const std::string &name) const { return to_array(load(name).view); }

    /// NULL when there is no such entry.
    const char *metadata(const char *key) const { return ds41_file_get_metadata(parts_[0].get(), key); }

private:
    std::vector<Handle<ds41_file>> parts_;
    std::map<std::string, size_t, std::less<>> part_of_; // tensor name -> index into parts_
};

} // namespace replay
