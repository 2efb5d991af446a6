// Entry point of the benchmark's own tests: doctest's. Nothing here asserts how long anything takes.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
