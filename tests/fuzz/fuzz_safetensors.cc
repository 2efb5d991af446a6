// A safetensors file: header and data.
#include "target.h"

#include "checkpoint/safetensors.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

using namespace ds41;
using namespace ds41::fuzz;

namespace {

// An entry in memory takes some 90 bytes, and at most four times as many pass through a vector that grows; in the text
// it has 50 or more. A pair of metadata has 8 bytes and the text's own again for 6. JSON's own errors quote the text.
constexpr std::uint64_t kPerByte = 24, kConstant = 8192;

void check_tensor(const SafetensorsFile &file, const SafetensorsEntry &entry) {
    attempt([&] {
        const ds41_tensor tensor = file.tensor(entry.name);
        require(tensor.data == entry.data, "a view begins where its entry does");
        require(tensor.n_dims == static_cast<int>(entry.shape.size()) &&
                    std::equal(entry.shape.begin(), entry.shape.end(), tensor.shape),
                "a view has its entry's shape");
        if (!tensor.scales) return;
        const auto owner =
            std::find_if(file.entries().begin(), file.entries().end(), [&](const SafetensorsEntry &other) {
                return other.data == tensor.scales && other.dtype == "F8_E8M0";
            });
        require(owner != file.entries().end(), "scales are an entry of the file");
    });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte *>(data), size);
    std::optional<SafetensorsFile> file;
    if (!parses(size, kPerByte, kConstant, [&] { file.emplace(bytes); })) return 0;

    std::uint64_t n_data = 0;
    std::string_view before;
    for (std::size_t i = 0; i < file->n_tensors(); ++i) {
        const SafetensorsEntry &entry = file->entries()[i];
        require(i == 0 || before < entry.name, "names ascend");
        before = entry.name;
        require(file->name(i) == entry.name, "name() is the entry's");
        require(file->find(entry.name) == &entry, "find() finds every entry");
        require(entry.data >= bytes.data() && entry.n_bytes <= size &&
                    entry.data <= bytes.data() + size - entry.n_bytes,
                "a tensor lies within the file");
        std::uint64_t n_bytes = find_safetensors_dtype(entry.dtype)->n_bytes;
        for (const std::int64_t n : entry.shape) n_bytes *= static_cast<std::uint64_t>(n);
        require(entry.n_bytes == n_bytes, "a tensor has the bytes of its dtype and shape");
        n_data += n_bytes;
        check_tensor(*file, entry);
    }
    // With every range inside and none left out, sums agree only where nothing overlaps.
    std::uint64_t header = 0;
    std::memcpy(&header, data, 8);
    require(n_data == size - 8 - header, "tensors cover the data once");
    require(file->name(file->n_tensors()) == nullptr, "no name beyond the last");
    for (const char *key : {"", "format", "config"})
        if (const char *value = file->metadata(key)) require(std::strlen(value) <= size, "a value comes from the file");
    attempt([&] { file->tensor("no such tensor"); });
    return 0;
}
