// A GGUF file: metadata and the table of tensors; and what the loader makes of them before it reads any data: names,
// the configuration, which tensor stands in which place.
#include "target.h"

#include "checkpoint/gguf.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/inventory.h"
#include "checkpoint/tensor_names.h"
#include "model/config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

using namespace ds41;
using namespace ds41::fuzz;

namespace {

// A tensor in memory takes some 100 bytes, and at most four times as many pass through a vector that grows; in the file
// it has 33 or more. A metadata entry has 24 for 14.
constexpr std::uint64_t kPerByte = 16, kConstant = 4096;

void read_metadata(const GgufFile &file) {
    const GgufMetadata &metadata = file.metadata();
    for (std::size_t i = 0; i < metadata.size(); ++i) {
        const std::string_view key = metadata.key(i);
        require(i == 0 || metadata.key(i - 1) < key, "keys ascend");
        require(!key.empty() && file.has(key), "every key is found");
        attempt([&] { require(file.integer(key).has_value(), "a key that is there has a value or refuses"); });
        attempt([&] { require(file.real(key).has_value(), "a key that is there has a value or refuses"); });
        attempt([&] { require(file.string(key)->size() <= file.bytes().size(), "a string comes from the file"); });
        attempt([&] { require(file.integers(key)->size() <= file.bytes().size(), "a list comes from the file"); });
    }
    require(!file.has("") && !file.integer(""), "an absent key has no value");
}

// The first block of a tensor, whatever it holds.
void expand_block(const GgufFile &file, const GgufTensor &tensor) {
    if (!tensor.type || !tensor.type->expand || tensor.n_bytes == 0) return;
    std::vector<float> values(tensor.type->block_values);
    const std::span<const std::byte> data = file.data(tensor);
    tensor.type->expand(reinterpret_cast<const std::uint8_t *>(data.data()), 1, values.data());
}

void take_stock(const GgufFile &file) {
    std::vector<FoundTensor> found;
    for (const GgufTensor &tensor : file.tensors()) {
        FoundTensor one;
        if (!parse_tensor_name(CheckpointFormat::kGguf, tensor.name, one.where)) continue;
        one.name = tensor.name;
        one.type = tensor.type;
        one.type_name = tensor.type ? tensor.type->name : "unknown";
        one.shape = tensor.shape;
        one.range = {0, tensor.offset, tensor.n_bytes};
        found.push_back(std::move(one));
    }
    attempt([&] {
        const Config config(gguf_config(file.metadata(), found));
        const Inventory inventory(CheckpointFormat::kGguf, found, config);
        for (const PlacedTensor &placed : inventory.tensors()) {
            require(placed.layer >= 0 && placed.layer < config.n_layers_total(), "a place is in a layer");
            require(placed.place && placed.weight && placed.weight->type, "a place has a tensor of a known type");
        }
        for (const Problem &problem : inventory.problems()) require(!problem.text.empty(), "a problem has a sentence");
    });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte *>(data), size);
    std::optional<GgufFile> file;
    if (!parses(size, kPerByte, kConstant, [&] { file.emplace(bytes); })) return 0;

    read_metadata(*file);
    std::vector<const GgufTensor *> by_offset;
    std::string_view before;
    for (const GgufTensor &tensor : file->tensors()) {
        require(before < tensor.name, "names ascend"); // which none that is empty does
        before = tensor.name;
        require(file->find(tensor.name) == &tensor, "find() finds every tensor");
        require(tensor.type == find_gguf_type(tensor.type_id), "the type is that of the id");
        require(!tensor.shape.empty() && tensor.shape.size() <= 4, "a tensor has 1 to 4 dimensions");
        require(tensor.offset <= size && tensor.n_bytes <= size - tensor.offset, "a tensor lies within the file");
        std::uint64_t n_values = 1;
        for (const std::int64_t n : tensor.shape) n_values *= static_cast<std::uint64_t>(n);
        if (tensor.type)
            require(tensor.n_bytes / tensor.type->block_bytes == n_values / tensor.type->block_values &&
                        tensor.n_bytes % tensor.type->block_bytes == 0,
                    "a tensor has the bytes of its type and shape");
        else
            require(tensor.n_bytes == 0, "an unknown type has no bytes");
        expand_block(*file, tensor);
        if (tensor.n_bytes > 0) by_offset.push_back(&tensor);
    }
    std::sort(by_offset.begin(), by_offset.end(),
              [](const GgufTensor *a, const GgufTensor *b) { return a->offset < b->offset; });
    for (std::size_t i = 1; i < by_offset.size(); ++i)
        require(by_offset[i - 1]->offset + by_offset[i - 1]->n_bytes <= by_offset[i]->offset, "tensors do not overlap");
    take_stock(*file);
    require(file->find("") == nullptr, "no tensor without a name");
    return 0;
}
