// What stands behind the opaque handles. Parents are shared: destroying them in any order is safe.
#pragma once

#include "backend/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "forward/context.h"
#include "model/model.h"
#include "sequence/sequence.h"

#include <memory>

struct ds41_model {
    std::shared_ptr<ds41::Model> impl;
};

struct ds41_ctx {
    std::shared_ptr<ds41::Context> impl;
};

struct ds41_graph {
    std::weak_ptr<ds41::Context> ctx; // the graph does not keep it
    std::unique_ptr<ds41::Graph> impl;
};

struct ds41_seq {
    std::shared_ptr<ds41::Sequence> impl;
};

struct ds41_buffer {
    std::shared_ptr<const ds41::Model> model; // keeps the backend's memory alive
    ds41::Block block;
};

struct ds41_file {
    ds41::SafetensorsFile impl;
};

struct ds41_checkpoint {
    std::shared_ptr<const ds41::Checkpoint> impl;
};
