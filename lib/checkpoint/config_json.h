// config.json to ds41_config, in either of its two forms. Only what JSON can get wrong is refused here (syntax, missing
// keys, types, what a member cannot hold); whether the numbers make a model is for the validation that follows.
#pragma once

#include "ds41/ds41.h"

#include <string_view>

namespace ds41 {

// The form is told by a top-level object `text_config`: with it, the release's names inside it; without, the
// reference's flat names. Throws DS41_STATUS_INVALID_FILE or DS41_STATUS_INVALID_CONFIG.
ds41_config parse_config_json(std::string_view json);

} // namespace ds41
