// Everything of the C++ API.
#pragma once

#include "mpfa/attention.hpp"
#include "mpfa/build_info.hpp"
#include "mpfa/cache.hpp"
#include "mpfa/device_cache.hpp"
#include "mpfa/device_merge.hpp"
#include "mpfa/executor.hpp"
#include "mpfa/formats.hpp"
#include "mpfa/layout.hpp"
#include "mpfa/pages.hpp"
#include "mpfa/recipe.hpp"
#include "mpfa/reference.hpp"
#include "mpfa/rope.hpp"
#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"
