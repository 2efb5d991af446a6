// What a fixture asks for: geometry, steps, arithmetic modes, tolerance, and which tensors there are to compare.
#pragma once

#include "fixture.h"
#include "tolerance.h"

#include <set>
#include <string>
#include <vector>

namespace replay {

struct Step {
    int64_t start_pos; ///< 0 begins a new sequence.
    int64_t n_tokens;
};

/// An arithmetic for quantised weights; the tensors expected of it start with the prefix.
struct Mode {
    std::string prefix;
    std::string name;
    bool plain_activations;
};

struct Expected {
    size_t step;
    int32_t layer;
    std::string kind;   ///< Without the mode's prefix.
    std::string tensor; ///< Whole name in the file.
};

struct Case {
    std::string name;
    ds41_config config;
    std::string tie; ///< stable or torch_cpu.
    std::vector<Step> steps;
    std::vector<Mode> modes;
    std::vector<std::vector<Expected>> expected; ///< Per mode; by step, layer, and the order of the computation.
    Tolerance tolerance;
    std::vector<int32_t> layers;           ///< Those with weights and inputs, ascending.
    std::set<std::string> q2_k;            ///< Names of the weights that are Q2_K blocks.
    std::vector<std::string> not_compared; ///< Expected tensors that nothing is known about.
    int64_t n_refslot = 0;                 ///< refslot.* tensors, which describe another rule than the library's.
};

/**
 * Whether DeepSeek's reference scores this step of an index source against keys that another source left in the slot
 * they share there (rules.index_k `reference`): it rewrites the slot only when a group completes. This library never
 * does.
 */
bool shares_index_keys(const Case &replayed, size_t step, int32_t layer);

/// Throws CannotRun when the metadata is not that of a case, or asks for what the library does not do by design.
Case read_case(const Fixture &fixture);

} // namespace replay
