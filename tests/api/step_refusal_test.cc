// Every wrong argument of the step functions, tried in the middle of a conversation that must not notice.
#include "scene.h"

#include <climits>
#include <cstdlib>

using namespace api_test;

namespace {

constexpr ds41_status kArgument = DS41_STATUS_INVALID_ARGUMENT;
constexpr ds41_status kDtype = DS41_STATUS_INVALID_DTYPE;
constexpr ds41_status kShape = DS41_STATUS_INVALID_SHAPE;
constexpr ds41_status kLayer = DS41_STATUS_INVALID_LAYER;
constexpr ds41_status kPosition = DS41_STATUS_INVALID_POSITION;
constexpr ds41_status kOrder = DS41_STATUS_WRONG_ORDER;
constexpr ds41_status kUnsupported = DS41_STATUS_UNSUPPORTED;
constexpr const char *kPrefill = "ds41_layer_prefill";
constexpr const char *kPrep = "ds41_decode_prep";
constexpr const char *kBody = "ds41_decode_body";

// One thing wrong with a tensor that is [rows, 64] bf16.
struct TensorFault {
    const char *name;
    std::vector<ds41_status> accepted;
    std::vector<std::string> words;
    void (*spoil)(ds41_tensor &);
};

const std::vector<TensorFault> &tensor_faults() {
    static const std::vector<TensorFault> faults = {
        {"dtype NONE", {kDtype}, {"BF16"}, [](ds41_tensor &t) { t.dtype = DS41_DTYPE_NONE; }},
        {"dtype F32", {kDtype}, {"F32", "BF16"}, [](ds41_tensor &t) { t.dtype = DS41_DTYPE_F32; }},
        {"dtype F16", {kDtype}, {"F16", "BF16"}, [](ds41_tensor &t) { t.dtype = DS41_DTYPE_F16; }},
        {"dtype 99", {kDtype}, {"99|unknown dtype", "BF16"}, [](ds41_tensor &t) { t.dtype = 99; }},
        {"dtype -1", {kDtype}, {"-1|unknown dtype", "BF16"}, [](ds41_tensor &t) { t.dtype = -1; }},
        {"n_dims 0", {kShape}, {"0", "2|64"}, [](ds41_tensor &t) { t.n_dims = 0; }},
        {"n_dims 1", {kShape}, {"1|[11]|[3]", "2|64"}, [](ds41_tensor &t) { t.n_dims = 1; }},
        {"n_dims 3",
         {kShape},
         {"64"},
         [](ds41_tensor &t) {
             t.n_dims = 3;
             t.shape[2] = 1;
         }},
        {"n_dims 5", {kShape}, {"5"}, [](ds41_tensor &t) { t.n_dims = 5; }},
        {"n_dims -1", {kShape}, {"-1"}, [](ds41_tensor &t) { t.n_dims = -1; }},
        {"n_dims INT32_MAX", {kShape}, {"2147483647"}, [](ds41_tensor &t) { t.n_dims = INT32_MAX; }},
        {"a row less", {kShape}, {"10|2", "11|3"}, [](ds41_tensor &t) { t.shape[0]--; }},
        {"a row more", {kShape}, {"12|4", "11|3"}, [](ds41_tensor &t) { t.shape[0]++; }},
        {"no row", {kShape}, {"0", "11|3"}, [](ds41_tensor &t) { t.shape[0] = 0; }},
        {"-1 rows", {kShape}, {"-1", "11|3"}, [](ds41_tensor &t) { t.shape[0] = -1; }},
        {"2^32 rows more", {kShape}, {"11|3"}, [](ds41_tensor &t) { t.shape[0] += int64_t(1) << 32; }},
        {"a column less", {kShape}, {"63", "64"}, [](ds41_tensor &t) { t.shape[1] = 63; }},
        {"a column more", {kShape}, {"65", "64"}, [](ds41_tensor &t) { t.shape[1] = 65; }},
        {"no column", {kShape}, {"0", "64"}, [](ds41_tensor &t) { t.shape[1] = 0; }},
        {"INT64_MAX columns", {kShape}, {"9223372036854775807", "64"}, [](ds41_tensor &t) { t.shape[1] = INT64_MAX; }},
        {"INT64_MIN columns", {kShape}, {"64"}, [](ds41_tensor &t) { t.shape[1] = INT64_MIN; }},
        {"transposed", {kShape}, {"64"}, [](ds41_tensor &t) { std::swap(t.shape[0], t.shape[1]); }},
        {"data NULL", {kArgument}, {"NULL|null"}, [](ds41_tensor &t) { t.data = nullptr; }},
        {"data misaligned",
         {kArgument},
         {"2|aligned|alignment|misaligned"},
         [](ds41_tensor &t) { t.data = static_cast<char *>(t.data) + 1; }},
        {"an unknown flag", {kUnsupported, kArgument}, {"flags"}, [](ds41_tensor &t) { t.flags = 1u << 31; }},
        {"reserved", {kUnsupported, kArgument}, {"reserved"}, [](ds41_tensor &t) { t.reserved = 1; }},
    };
    return faults;
}

void add_tensor_refusals(std::vector<Refusal> &list, bool of_prefill, bool spoil_x) {
    for (const TensorFault &fault : tensor_faults()) {
        Refusal refusal;
        const char *argument = spoil_x ? "x" : "out";
        refusal.function = of_prefill ? kPrefill : kBody;
        refusal.name = std::string(refusal.function) + ", " + argument + ": " + fault.name;
        refusal.moment = of_prefill ? Moment::in_prefill : Moment::in_decode;
        refusal.accepted = fault.accepted;
        refusal.words = fault.words;
        refusal.words.push_back(argument);
        refusal.call = [&fault, of_prefill, spoil_x](Scene &s) {
            const int32_t n = of_prefill ? kPrefillTokens : kDecodeRows;
            ds41_tensor x = s.x_rows(n), out = s.out_rows(n);
            fault.spoil(spoil_x ? x : out);
            return of_prefill ? ds41_layer_prefill(s.ctx, 3, s.a, &x, n, 0, &out)
                              : ds41_decode_body(s.ctx, 5, &x, &out);
        };
        list.push_back(refusal);
    }
}

} // namespace

TEST_CASE("a tensor that is not [rows, dim] bf16 is refused by every step function and nothing changes") {
    std::vector<Refusal> list;
    for (const bool of_prefill : {true, false}) {
        add_tensor_refusals(list, of_prefill, true);
        add_tensor_refusals(list, of_prefill, false);
    }
    check_refusals(list);
}

TEST_CASE("on a device, x and out are memory of it, all of them") {
    if (!on_device()) return; // a host takes whatever it can reach
    static const std::vector<uint16_t> host(static_cast<size_t>((kPrefillTokens + 1) * small_config().dim), 0x3F80);
    const std::string backend = ds41_model_get_backend(empty_model(small_config()).get());
    std::vector<Refusal> list;
    for (const bool of_prefill : {true, false}) {
        for (const bool spoil_x : {true, false}) {
            for (const bool is_beyond : {true, false}) {
                Refusal refusal;
                const char *argument = spoil_x ? "x" : "out";
                refusal.function = of_prefill ? kPrefill : kBody;
                refusal.name =
                    std::string(refusal.function) + ", " + argument + (is_beyond ? " ends beyond" : " of the host");
                refusal.moment = of_prefill ? Moment::in_prefill : Moment::in_decode;
                refusal.accepted = {kArgument};
                refusal.words = {argument, "device", backend};
                refusal.call = [=](Scene &s) {
                    const int32_t n = of_prefill ? kPrefillTokens : kDecodeRows;
                    ds41_tensor x = s.x_rows(n), out = s.out_rows(n);
                    // Nothing lies behind x: the last value of n rows that begin one value late is nobody's.
                    void *const beyond = s.x.at(s.x.size() - n * s.model.config.dim + 1);
                    (spoil_x ? x : out).data = is_beyond ? beyond : const_cast<uint16_t *>(host.data());
                    return of_prefill ? ds41_layer_prefill(s.ctx, 3, s.a, &x, n, 0, &out)
                                      : ds41_decode_body(s.ctx, 5, &x, &out);
                };
                list.push_back(refusal);
            }
        }
    }
    check_refusals(list);
}

TEST_CASE("x and out may be one memory or two, but not overlap in part") {
    std::vector<Refusal> list;
    // In values; both live in the guarded buffer. 191 and 319: all but one value.
    for (const int64_t shift : {1, 63, 64, 128, 191, 319, -1, -64, -191, -319}) {
        for (const bool of_prefill : {true, false}) {
            if (!of_prefill && std::abs(shift) > 191) continue;
            Refusal refusal;
            refusal.function = of_prefill ? kPrefill : kBody;
            refusal.name = std::string(refusal.function) + ", out at x + " + std::to_string(shift);
            refusal.moment = of_prefill ? Moment::in_prefill : Moment::in_decode;
            refusal.accepted = {kArgument};
            refusal.words = {"out", "x", "overlap|overlaps|overlapping"};
            refusal.call = [shift, of_prefill](Scene &s) {
                const int32_t n = of_prefill ? 5 : kDecodeRows;
                ds41_tensor x = s.out_rows(n), out = s.out_rows(n);
                (shift > 0 ? out : x).data = s.out.at(std::abs(shift));
                if (!of_prefill) return ds41_decode_body(s.ctx, 5, &x, &out);
                return ds41_layer_prefill(s.ctx, 0, s.fresh, &x, n, 0, &out);
            };
            list.push_back(refusal);
        }
    }
    check_refusals(list);
}

TEST_CASE("prefill refuses a layer, a count or a position that is out of range") {
    std::vector<Refusal> list;
    for (const int32_t layer : {-1, 8, INT32_MAX, INT32_MIN}) {
        list.push_back({"layer " + std::to_string(layer),
                        Moment::in_prefill,
                        {kLayer},
                        kPrefill,
                        {"layer", std::to_string(layer), "7|8"},
                        [layer](Scene &s) { return s.prefill(layer, s.a, kPrefillTokens, 0); }});
    }
    for (const int32_t n : {0, -1, INT32_MIN}) {
        list.push_back({"n_tokens " + std::to_string(n),
                        Moment::end,
                        {kArgument},
                        kPrefill,
                        {"n_tokens", std::to_string(n), "1"},
                        [n](Scene &s) {
                            const ds41_tensor x = s.x_rows(1), out = s.out_rows(1);
                            return ds41_layer_prefill(s.ctx, 0, s.a, &x, n, kEndOfA, &out);
                        }});
    }
    list.push_back({"n_tokens INT32_MAX, one row",
                    Moment::end,
                    {kShape, kPosition, kArgument},
                    kPrefill,
                    {"2147483647"},
                    [](Scene &s) {
                        const ds41_tensor x = s.x_rows(1), out = s.out_rows(1);
                        return ds41_layer_prefill(s.ctx, 0, s.a, &x, INT32_MAX, kEndOfA, &out);
                    }});
    // 0 on a non-empty sequence, repeats, gaps, nonsense.
    for (const int64_t start : {int64_t(0), kEndOfA - 1, kEndOfA + 1, kEndOfA + 8, int64_t(159), int64_t(160),
                                int64_t(-1), INT64_MAX, INT64_MIN}) {
        list.push_back({"start_pos " + std::to_string(start),
                        Moment::end,
                        {kPosition},
                        kPrefill,
                        {"start_pos", std::to_string(start), "12|159|160"},
                        [start](Scene &s) { return s.prefill(0, s.a, 1, start); }});
    }
    for (const int32_t n : {149, 1000, INT32_MAX}) {
        list.push_back({"end beyond max_seq_len, n_tokens " + std::to_string(n),
                        Moment::end,
                        {kPosition},
                        kPrefill,
                        {"max_seq_len", "160"},
                        [n](Scene &s) { return s.prefill(0, s.a, n, kEndOfA); }});
    }
    check_refusals(list);
}

TEST_CASE("prefill refuses what the step in flight does not allow") {
    check_refusals({
        {"consumer first",
         Moment::start,
         {kOrder},
         kPrefill,
         {"layer", "3", "2"},
         [](Scene &s) { return s.prefill(3, s.a, kPrefillTokens, 0); }},
        {"consumer of a later source",
         Moment::in_prefill,
         {kOrder},
         kPrefill,
         {"layer", "5", "4"},
         [](Scene &s) { return s.prefill(5, s.a, kPrefillTokens, 0); }},
        {"index source before its candidates",
         Moment::in_prefill,
         {kOrder},
         kPrefill,
         {"layer", "6", "4"},
         [](Scene &s) { return s.prefill(6, s.a, kPrefillTokens, 0); }},
        {"same layer twice",
         Moment::in_prefill,
         {kOrder, kPosition},
         kPrefill,
         {"layer|start_pos", "2"},
         [](Scene &s) { return s.prefill(2, s.a, kPrefillTokens, 0); }},
        {"a layer below",
         Moment::in_prefill,
         {kOrder, kPosition},
         kPrefill,
         {"layer|start_pos"},
         [](Scene &s) { return s.prefill(0, s.a, kPrefillTokens, 0); }},
        {"another count makes another step",
         Moment::in_prefill,
         {kOrder},
         kPrefill,
         {"layer", "3", "2"},
         [](Scene &s) { return s.prefill(3, s.a, kPrefillTokens - 1, 0); }},
        {"another start",
         Moment::in_prefill,
         {kOrder, kPosition},
         kPrefill,
         {"layer|start_pos", "3|1"},
         [](Scene &s) { return s.prefill(3, s.a, kPrefillTokens, 1); }},
        {"another sequence",
         Moment::in_prefill,
         {kOrder},
         kPrefill,
         {"layer", "3", "2"},
         [](Scene &s) { return s.prefill(3, s.fresh, kPrefillTokens, 0); }},
        {"another context",
         Moment::in_prefill,
         {kOrder},
         kPrefill,
         {"layer", "3", "2"},
         [](Scene &s) { return s.prefill(3, s.a, kPrefillTokens, 0, s.idle_ctx); }},
        {"a sequence of another model",
         Moment::in_prefill,
         {kArgument},
         kPrefill,
         {"seq", "model"},
         [](Scene &s) { return s.prefill(0, s.foreign, kPrefillTokens, 0); }},
        {"a consumer after the decode step",
         Moment::end,
         {kOrder},
         kPrefill,
         {"layer", "3", "2"},
         [](Scene &s) { return s.prefill(3, s.a, 1, kEndOfA); }},
    });
}

TEST_CASE("prep refuses wrong spans and leaves the step before it in flight") {
    struct SpanFault {
        const char *name;
        std::vector<ds41_status> accepted;
        std::vector<std::string> words;
        void (*spoil)(Scene &, ds41_span *);
    };
    static const std::vector<SpanFault> faults = {
        {"seq NULL", {kArgument}, {"seq", "1"}, [](Scene &, ds41_span *s) { s[1].seq = nullptr; }},
        {"foreign seq",
         {kArgument},
         {"seq", "model", "1"},
         [](Scene &scene, ds41_span *s) { s[1].seq = scene.foreign; }},
        {"seq twice", {kArgument}, {"seq|sequence", "0", "1"}, [](Scene &, ds41_span *s) { s[1] = s[0]; }},
        {"n_tokens 0", {kArgument}, {"n_tokens", "0", "1"}, [](Scene &, ds41_span *s) { s[1].n_tokens = 0; }},
        {"n_tokens -1", {kArgument}, {"n_tokens", "-1", "1"}, [](Scene &, ds41_span *s) { s[1].n_tokens = -1; }},
        {"n_tokens INT32_MIN",
         {kArgument},
         {"n_tokens", "1"},
         [](Scene &, ds41_span *s) { s[1].n_tokens = INT32_MIN; }},
        {"n_tokens INT32_MAX",
         {kPosition, kArgument},
         {"160"},
         [](Scene &, ds41_span *s) { s[1].n_tokens = INT32_MAX; }},
        {"end beyond max_seq_len",
         {kPosition},
         {"max_seq_len", "160"},
         [](Scene &, ds41_span *s) { s[1].n_tokens = 154; }},
        {"start_pos 0", {kPosition}, {"start_pos", "0", "7|5"}, [](Scene &, ds41_span *s) { s[1].start_pos = 0; }},
        {"a repeat", {kPosition}, {"start_pos", "4", "7|5"}, [](Scene &, ds41_span *s) { s[1].start_pos = 4; }},
        {"a gap", {kPosition}, {"start_pos", "8", "7|5"}, [](Scene &, ds41_span *s) { s[1].start_pos = 8; }},
        {"start_pos -1",
         {kPosition, kArgument},
         {"start_pos", "-1"},
         [](Scene &, ds41_span *s) { s[1].start_pos = -1; }},
        {"start_pos INT64_MAX",
         {kPosition, kArgument},
         {"start_pos", "9223372036854775807"},
         [](Scene &, ds41_span *s) { s[1].start_pos = INT64_MAX; }},
        {"start_pos INT64_MIN",
         {kPosition, kArgument},
         {"start_pos", "-9223372036854775808"},
         [](Scene &, ds41_span *s) { s[1].start_pos = INT64_MIN; }},
        {"reserved", {kArgument, kUnsupported}, {"reserved", "7"}, [](Scene &, ds41_span *s) { s[1].reserved = 7; }},
    };
    std::vector<Refusal> list;
    for (const Moment moment : {Moment::end, Moment::in_decode}) {
        for (const SpanFault &fault : faults) { // a first span that would need pages gets none
            if (std::string(fault.name) == "seq twice") continue;
            list.push_back({std::string(fault.name) + ", after an empty sequence", moment, fault.accepted, kPrep,
                            fault.words, [&fault](Scene &s) {
                                ds41_span spans[2] = {{s.fresh, 0, 60, 0}, {s.b, kEndOfB, 2, 0}};
                                fault.spoil(s, spans);
                                return ds41_decode_prep(s.ctx, spans, 2);
                            }});
        }
        for (const SpanFault &fault : faults) {
            list.push_back({fault.name, moment, fault.accepted, kPrep, fault.words, [&fault](Scene &s) {
                                ds41_span spans[2] = {{s.a, kEndOfA, 1, 0}, {s.b, kEndOfB, 2, 0}};
                                fault.spoil(s, spans);
                                return ds41_decode_prep(s.ctx, spans, 2);
                            }});
        }
        for (const int32_t n_spans : {0, -1, INT32_MIN}) {
            list.push_back({"n_spans " + std::to_string(n_spans),
                            moment,
                            {kArgument},
                            kPrep,
                            {"n_spans", std::to_string(n_spans)},
                            [n_spans](Scene &s) {
                                const ds41_span span = {s.a, kEndOfA, 1, 0};
                                return ds41_decode_prep(s.ctx, &span, n_spans);
                            }});
        }
        list.push_back({"spans NULL", moment, {kArgument}, kPrep, {"spans", "NULL|null"}, [](Scene &s) {
                            return ds41_decode_prep(s.ctx, nullptr, 1);
                        }});
    }
    check_refusals(list);
}

TEST_CASE("body refuses a wrong layer and a step that is not there") {
    std::vector<Refusal> list;
    for (const int32_t layer : {-1, 8, INT32_MAX, INT32_MIN}) {
        list.push_back({"layer " + std::to_string(layer),
                        Moment::in_decode,
                        {kLayer},
                        kBody,
                        {"layer", std::to_string(layer), "7|8"},
                        [layer](Scene &s) { return s.body(layer); }});
    }
    list.push_back({"same layer twice", Moment::in_decode, {kOrder, kPosition}, kBody, {"layer", "4"}, [](Scene &s) {
                        return s.body(4);
                    }});
    list.push_back({"a layer below", Moment::in_decode, {kOrder, kPosition}, kBody, {"layer", "0"}, [](Scene &s) {
                        return s.body(0);
                    }});
    list.push_back({"no prep at all", Moment::start, {kOrder}, kBody, {"ds41_decode_prep|prepared"}, [](Scene &s) {
                        return s.body(0);
                    }});
    list.push_back(
        {"no prep on this context", Moment::in_decode, {kOrder}, kBody, {"ds41_decode_prep|prepared"}, [](Scene &s) {
             return s.body(5, s.idle_ctx);
         }});
    list.push_back(
        {"a prefill is no prep", Moment::in_prefill, {kOrder}, kBody, {"ds41_decode_prep|prepared"}, [](Scene &s) {
             const ds41_tensor x = s.x_rows(kPrefillTokens), out = s.out_rows(kPrefillTokens);
             return ds41_decode_body(s.ctx, 3, &x, &out);
         }});
    check_refusals(list);
}
