// Entry point of the stage tests: doctest's own. Environment: DS41_TEST_SEED (start of the random inputs).
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
