// What the tool prints: a page for people, or one JSON document.
#pragma once

#include "contents.h"
#include "options.h"

#include <string>

namespace inspect {

std::string text_report(const Options &options, const Contents &contents);
std::string json_report(const Options &options, const Contents &contents);

} // namespace inspect
