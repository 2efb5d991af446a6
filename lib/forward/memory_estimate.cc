#include "forward/memory_estimate.h"

#include "error.h"
#include "forward/context.h"
#include "sequence/sequence.h"

namespace ds41 {

ds41_memory estimate_memory(const Model &model, const std::vector<bool> &layers, std::int64_t n_seqs,
                            std::int64_t n_positions, std::int64_t n_tokens) {
    const auto check_range = [](const char *name, std::int64_t value, std::int64_t low, std::int64_t high) {
        DS41_CHECK(value >= low && value <= high, DS41_STATUS_INVALID_ARGUMENT,
                   "%s is %lld, need a value in [%lld, %lld]", name, static_cast<long long>(value),
                   static_cast<long long>(low), static_cast<long long>(high));
    };
    constexpr std::int64_t kMost = 1 << 30;
    check_range("n_seqs", n_seqs, 0, kMost);
    check_range("n_positions", n_positions, 0, model.config().max_seq_len);
    check_range("n_tokens", n_tokens, 1, kMost);

    SequenceBytes one;
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
        if (layers[layer]) one.add(Sequence::bytes_for(model, static_cast<int>(layer), n_positions));
    const auto times = static_cast<std::uint64_t>(n_seqs);
    std::uint64_t sum = 0;
    DS41_CHECK(!__builtin_mul_overflow(one.total(), times, &sum), DS41_STATUS_INVALID_ARGUMENT,
               "n_seqs is %lld, need a value for which the bytes stay below 2^64", static_cast<long long>(n_seqs));
    ds41_memory memory{};
    memory.window = one.window * times;
    memory.compressed = one.compressed * times;
    memory.index_keys = one.index_keys * times;
    memory.group_state = one.group_state * times;
    memory.workspace = context_bytes_for(model, n_tokens, n_positions);
    return memory;
}

} // namespace ds41
