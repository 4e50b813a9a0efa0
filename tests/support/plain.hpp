// For tests that do not need LibTorch; these compile ten seconds faster. Others include
// <cairn/tests/support/torch.hpp>.
#pragma once

#include <doctest/doctest.h>
