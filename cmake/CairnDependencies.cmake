# The libraries that the project builds on. Each one that is missing gets one sentence, which names its Debian package. Together these end the
# run.
set(missing "")
macro(cairn_missing_unless found sentence)
  if(NOT ${found})
    list(APPEND missing "${sentence}")
  endif()
endmacro()
macro(cairn_report_missing)
  if(missing)
    list(JOIN missing "\n  " missing)
    message(FATAL_ERROR "Cairn cannot be built here:\n  ${missing}\nCMAKE_PREFIX_PATH names folders of libraries that lie elsewhere.")
  endif()
endmacro()

find_package(Python3 COMPONENTS Interpreter)
cairn_missing_unless(Python3_FOUND "Python 3 is missing: install python3.")
find_package(Threads REQUIRED)
find_package(OpenSSL)
cairn_missing_unless(OPENSSL_FOUND "OpenSSL is missing: install libssl-dev.")
find_package(ZLIB)
cairn_missing_unless(ZLIB_FOUND "zlib is missing: install zlib1g-dev.")

# LibTorch's archives and Python packages bring headers of an old Protobuf without its library: the system's is meant. What LibTorch finds
# itself must be visible to a parent project, as LibTorch is.
set(ignored_before ${CMAKE_IGNORE_PREFIX_PATH})
string(REPLACE ":" ";" prefixes "${CMAKE_PREFIX_PATH};$ENV{CMAKE_PREFIX_PATH}")
foreach(prefix IN LISTS prefixes)
  if(EXISTS ${prefix}/share/cmake/Torch AND NOT EXISTS ${prefix}/lib/libprotobuf.so)
    list(APPEND CMAKE_IGNORE_PREFIX_PATH ${prefix})
  endif()
endforeach()
find_package(Protobuf GLOBAL)
set(CMAKE_IGNORE_PREFIX_PATH ${ignored_before})
cairn_missing_unless(Protobuf_FOUND "Protobuf is missing: install libprotobuf-dev.")
cairn_missing_unless(Protobuf_PROTOC_EXECUTABLE "Protobuf's compiler protoc is missing: install protobuf-compiler.")

# CAF, isa-l, xxHash, Gloo and NCCL have no CMake packages everywhere.
find_path(CAF_INCLUDE_DIR caf/actor.hpp)
find_library(CAF_CORE_LIBRARY caf_core)
find_library(CAF_IO_LIBRARY caf_io)
if(CAF_INCLUDE_DIR AND CAF_CORE_LIBRARY AND CAF_IO_LIBRARY)
  file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp caf_version REGEX "define CAF_VERSION [0-9]+")
  if(NOT caf_version MATCHES "CAF_VERSION 17[0-9][0-9]$")
    list(APPEND missing "CAF in ${CAF_INCLUDE_DIR} is of another version: Cairn needs 0.17, Debian's libcaf-dev.")
  endif()
else()
  list(APPEND missing "CAF 0.17 is missing: install libcaf-dev.")
endif()

find_path(ISAL_INCLUDE_DIR isa-l/crc.h)
find_library(ISAL_LIBRARY isal)
if(NOT ISAL_INCLUDE_DIR OR NOT ISAL_LIBRARY)
  list(APPEND missing "isa-l is missing: install libisal-dev.")
endif()

# Its header is all that is used.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
cairn_missing_unless(XXHASH_INCLUDE_DIR "xxHash is missing: install libxxhash-dev.")

if(CAIRN_WITH_S3)
  cairn_missing_unless(cairn_can_use_s3 "libcurl 7.85 or expat, for s3: URLs, is missing: install libcurl4-openssl-dev and libexpat1-dev, or set \
CAIRN_WITH_S3=OFF to build without that store.")
  message(STATUS "S3: libcurl ${CURL_VERSION_STRING}")
else()
  message(STATUS "S3: off; s3: URLs need libcurl 7.85 and expat (libcurl4-openssl-dev and libexpat1-dev), and CAIRN_WITH_S3=ON")
endif()

if(CAIRN_WITH_ZSTD)
  cairn_missing_unless(zstd_FOUND "zstd, for compression, is missing: install libzstd-dev, or set CAIRN_WITH_ZSTD=OFF to build without it.")
  message(STATUS "Compression: zstd ${zstd_VERSION}")
else()
  message(STATUS "Compression: off; it needs zstd (libzstd-dev), and CAIRN_WITH_ZSTD=ON")
endif()

# Training needs the headers of what c10d's groups are made of; LibTorch brings the code.
if(CAIRN_WITH_TRAINING)
  find_path(GLOO_INCLUDE_DIR gloo/rendezvous/store.h)
  cairn_missing_unless(GLOO_INCLUDE_DIR "The headers of Gloo are missing, which LibTorch does not always bring: install libgloo-dev, or set \
CAIRN_WITH_TRAINING=OFF to build without sharded training.")
endif()

find_package(nlohmann_json QUIET)
cairn_missing_unless(nlohmann_json_FOUND "nlohmann's JSON, for safetensors files, is missing: install nlohmann-json3-dev.")
if(CAIRN_BUILD_COMMANDS OR CAIRN_BUILD_TESTS)
  find_package(fmt QUIET)
  cairn_missing_unless(fmt_FOUND "fmt, for the commands, is missing: install libfmt-dev.")
endif()
if(CAIRN_BUILD_COMMANDS OR CAIRN_BUILD_TESTS OR CAIRN_BUILD_EXAMPLES)
  find_package(CLI11 QUIET)
  cairn_missing_unless(CLI11_FOUND "CLI11, for the commands and examples, is missing: install libcli11-dev.")
endif()
if(CAIRN_BUILD_TESTS)
  find_path(DOCTEST_INCLUDE_DIR doctest/doctest.h)
  cairn_missing_unless(DOCTEST_INCLUDE_DIR "doctest, for the tests, is missing: install doctest-dev.")
endif()
cairn_report_missing()

# LibTorch comes last, since its own package ends the run if it lacks one of the others. It is where CMAKE_PREFIX_PATH or the system has it,
# or else in PyTorch's Python package, which says where. A parent project links its targets with the library.
find_package(Torch QUIET GLOBAL)
if(NOT Torch_FOUND AND Python3_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import torch.utils; print(torch.utils.cmake_prefix_path)"
                  OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(torch_prefix)
    find_package(Torch QUIET GLOBAL PATHS ${torch_prefix} NO_DEFAULT_PATH)
  endif()
endif()
if(Torch_FOUND)
  message(STATUS "LibTorch: ${Torch_VERSION} in ${TORCH_INSTALL_PREFIX}")
endif()
cairn_missing_unless(Torch_FOUND "LibTorch is missing: install libtorch-dev, or PyTorch for ${Python3_EXECUTABLE}, or set CMAKE_PREFIX_PATH to \
where its archive is unpacked.")
if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  list(APPEND missing "LibTorch in ${TORCH_INSTALL_PREFIX} is of another ABI (_GLIBCXX_USE_CXX11_ABI=0) than the system's CAF and Protobuf: install \
PyTorch 2.7 or later, or the archive of LibTorch whose name contains cxx11-abi.")
endif()

if(NOT CAIRN_WITH_TRAINING)
  message(STATUS "Sharded training: off")
elseif(TARGET c10_cuda)  # Python packages lie beside each other
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${TORCH_INSTALL_PREFIX}/../nvidia/nccl PATH_SUFFIXES include)
  cairn_missing_unless(NCCL_INCLUDE_DIR "LibTorch has CUDA, but nccl.h is missing: install libnccl-dev, set NCCL_ROOT to where it is, or \
set CAIRN_WITH_TRAINING=OFF to build without sharded training.")
  message(STATUS "NCCL: ${NCCL_INCLUDE_DIR}")
else()
  message(STATUS "NCCL: none, as LibTorch has no CUDA; training runs on Gloo alone")
endif()
cairn_report_missing()

# LibTorch as the library's users have it. Its targets carry no SYSTEM mark.
add_library(cairn_torch INTERFACE)
target_include_directories(cairn_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
# The compiler's own C++ library comes first: LibTorch's Python package exports parts of an older one (std::filesystem), which would
# otherwise be taken for it.
target_link_libraries(cairn_torch INTERFACE stdc++ ${TORCH_LIBRARIES})

# LibTorch as Cairn's own code has it: the header of c10d's Gloo group is empty without the define.
add_library(cairn_own_torch INTERFACE)
if(CAIRN_WITH_TRAINING)
  target_compile_definitions(cairn_own_torch INTERFACE USE_C10D_GLOO)
endif()
if(TARGET c10_cuda)
  target_compile_definitions(cairn_own_torch INTERFACE CAIRN_HAS_CUDA)
endif()
# Protobuf's own headers come before those that lie among LibTorch's. A link, since compilers search the system's folder last.
file(REAL_PATH ${Protobuf_INCLUDE_DIR}/google protobuf_headers)
foreach(folder IN LISTS TORCH_INCLUDE_DIRS)
  if(NOT EXISTS ${folder}/google/protobuf)
    continue()
  endif()
  file(REAL_PATH ${folder}/google torch_headers)
  if(NOT torch_headers STREQUAL protobuf_headers)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/protobuf)
    file(CREATE_LINK ${protobuf_headers} ${PROJECT_BINARY_DIR}/protobuf/google SYMBOLIC)
    target_include_directories(cairn_own_torch SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/protobuf)
  endif()
endforeach()
target_link_libraries(cairn_own_torch INTERFACE cairn_torch)

add_library(cairn_caf INTERFACE)
target_include_directories(cairn_caf SYSTEM INTERFACE ${CAF_INCLUDE_DIR})
target_link_libraries(cairn_caf INTERFACE ${CAF_IO_LIBRARY} ${CAF_CORE_LIBRARY} Threads::Threads)

add_library(cairn_isal INTERFACE)
target_include_directories(cairn_isal SYSTEM INTERFACE ${ISAL_INCLUDE_DIR})
target_link_libraries(cairn_isal INTERFACE ${ISAL_LIBRARY})

add_library(cairn_xxhash INTERFACE)
target_include_directories(cairn_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
