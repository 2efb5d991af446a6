// Sequences.
#include "sequence/sequence.h"

#include "api/boundary.h"
#include "api/handles.h"

using namespace ds41;

ds41_status ds41_seq_create(ds41_seq **seq, ds41_model *model) {
    return guarded(__func__, [&] {
        check_argument(seq, "seq");
        check_argument(model, "model");
        auto handle = std::make_unique<ds41_seq>();
        handle->impl = std::make_shared<Sequence>(model->impl);
        model->impl->seal();
        *seq = handle.release();
    });
}

void ds41_seq_destroy(ds41_seq *seq) {
    if (!seq) return;
    seq->impl->close();
    delete seq;
}

ds41_status ds41_seq_reset(ds41_seq *seq) {
    return guarded(__func__, [&] {
        check_argument(seq, "seq");
        seq->impl->reset();
    });
}

ds41_status ds41_seq_get_position(const ds41_seq *seq, int32_t layer, int64_t *position) {
    return guarded(__func__, [&] {
        check_argument(seq, "seq");
        check_argument(position, "position");
        const Sequence &impl = *seq->impl;
        const int n_layers = impl.model().config().n_layers_total();
        if (layer != DS41_ALL_LAYERS) {
            impl.model().config().check_layer(layer);
            *position = impl.layer(layer).position;
            return;
        }
        int64_t furthest = 0;
        for (int i = 0; i < n_layers; ++i) furthest = std::max<int64_t>(furthest, impl.layer(i).position);
        *position = furthest;
    });
}

ds41_status ds41_seq_reserve(ds41_seq *seq, int64_t n_positions) {
    return guarded(__func__, [&] {
        check_argument(seq, "seq");
        Sequence &impl = *seq->impl;
        const Config &config = impl.model().config();
        DS41_CHECK(n_positions >= 0 && n_positions <= config.max_seq_len, DS41_STATUS_INVALID_ARGUMENT,
                   "n_positions is %lld, need a value in [0, %lld] (max_seq_len)", static_cast<long long>(n_positions),
                   static_cast<long long>(config.max_seq_len));
        for (int layer = 0; layer < config.n_layers_total(); ++layer)
            if (impl.model().has_layer(layer)) impl.reserve(layer, n_positions);
    });
}

uint64_t ds41_seq_get_bytes(const ds41_seq *seq) {
    return seq ? seq->impl->bytes().total() : 0;
}
