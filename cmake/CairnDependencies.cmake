# What the project builds on: see README for the Debian packages.
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Protobuf REQUIRED)
find_package(Torch REQUIRED GLOBAL)  # a parent project links the library, and with it LibTorch
find_package(fmt REQUIRED)

# LibTorch as the library's users have it. Its targets carry no SYSTEM mark.
add_library(cairn_torch INTERFACE)
target_include_directories(cairn_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
# The compiler's own C++ library comes first: LibTorch's Python package exports parts of an older one (std::filesystem), which would
# otherwise be taken for it.
target_link_libraries(cairn_torch INTERFACE stdc++ ${TORCH_LIBRARIES})
# LibTorch as Cairn's own code has it: the header of c10d's Gloo group is empty without the define.
add_library(cairn_own_torch INTERFACE)
target_link_libraries(cairn_own_torch INTERFACE cairn_torch)
target_compile_definitions(cairn_own_torch INTERFACE USE_C10D_GLOO)
if(TARGET c10_cuda)
  target_compile_definitions(cairn_own_torch INTERFACE CAIRN_HAS_CUDA)
endif()

# A build with CUDA needs NCCL, which c10d's group for CUDA devices is made of: its header only, LibTorch brings the code. NCCL_ROOT says
# where else to look.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_ROOT PATH_SUFFIXES include)
if(TARGET c10_cuda AND NOT NCCL_INCLUDE_DIR)
  message(FATAL_ERROR "LibTorch has CUDA, but nccl.h is not found: set NCCL_ROOT")
elseif(TARGET c10_cuda)
  message(STATUS "NCCL: ${NCCL_INCLUDE_DIR}")
else()
  message(STATUS "NCCL: none, as LibTorch has no CUDA; training runs on Gloo alone")
endif()

# CAF and isa-l ship no CMake package.
find_path(CAF_INCLUDE_DIR caf/actor.hpp REQUIRED)
find_library(CAF_CORE_LIBRARY caf_core REQUIRED)
find_library(CAF_IO_LIBRARY caf_io REQUIRED)
add_library(cairn_caf INTERFACE)
target_include_directories(cairn_caf SYSTEM INTERFACE ${CAF_INCLUDE_DIR})
target_link_libraries(cairn_caf INTERFACE ${CAF_IO_LIBRARY} ${CAF_CORE_LIBRARY} Threads::Threads)

find_path(ISAL_INCLUDE_DIR isa-l/crc.h REQUIRED)
find_library(ISAL_LIBRARY isal REQUIRED)
add_library(cairn_isal INTERFACE)
target_include_directories(cairn_isal SYSTEM INTERFACE ${ISAL_INCLUDE_DIR})
target_link_libraries(cairn_isal INTERFACE ${ISAL_LIBRARY})
