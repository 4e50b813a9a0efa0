# Language level, warnings, sanitizers and output folders, for every target of the project. Nothing of it reaches a parent project.

# The standard that LibTorch's headers need, and so those of the library. A caller's own CMAKE_CXX_STANDARD counts if it is higher.
set(cairn_cxx_standard 17)
if(Torch_VERSION VERSION_GREATER_EQUAL 2.13)
  set(cairn_cxx_standard 20)
endif()
if(NOT DEFINED CMAKE_CXX_STANDARD OR CMAKE_CXX_STANDARD LESS cairn_cxx_standard)
  set(CMAKE_CXX_STANDARD ${cairn_cxx_standard})
endif()
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
if(NOT DEFINED CMAKE_UNITY_BUILD_BATCH_SIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 40)  # each compilation repeats templates of LibTorch
endif()
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # LibTorch may live outside the system's folders
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
# Without one CMake does not optimize. In a parent project only Cairn gets one, unless the flags of that project choose a level.
get_property(has_many_types GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT has_many_types AND (PROJECT_IS_TOP_LEVEL OR NOT CMAKE_CXX_FLAGS MATCHES "(^| )-O"))
  if(PROJECT_IS_TOP_LEVEL)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  else()
    set(CMAKE_BUILD_TYPE Release)
  endif()
  message(STATUS "Cairn: no build type was given; it is built as Release. CMAKE_BUILD_TYPE chooses another")
endif()

find_program(CAIRN_CCACHE ccache)
if(CAIRN_CCACHE AND (PROJECT_IS_TOP_LEVEL OR NOT CMAKE_CXX_COMPILER_LAUNCHER))
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CAIRN_CCACHE})
  add_compile_options(-fpch-preprocess)
endif()

add_library(cairn_settings INTERFACE)
target_compile_options(cairn_settings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # In optimized code GCC 12 takes the idle alternatives of std::variant and std::optional for uninitialized.
  target_compile_options(cairn_settings INTERFACE -Wno-maybe-uninitialized)
  if(CMAKE_UNITY_BUILD)  # a source is an included file there
    target_compile_options(cairn_settings INTERFACE -Wno-subobject-linkage)
  endif()
endif()
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID MATCHES Clang)  # checks base/thread_annotations.hpp
  target_compile_options(cairn_settings INTERFACE -Wthread-safety -Werror=thread-safety)
endif()
if(NOT PROJECT_IS_TOP_LEVEL)  # the parent may treat its warnings as errors, and hide its symbols; the export map chooses Cairn's
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
  set(CMAKE_CXX_VISIBILITY_PRESET default)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN OFF)
  target_compile_options(cairn_settings INTERFACE -Wno-error -fvisibility=default)
endif()
if(CAIRN_SANITIZE)
  # For everything, not only our own targets: the flags must agree with those of the precompiled header.
  add_compile_options(-fsanitize=${CAIRN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # LibTorch ships without type information for these checks.
  if(CAIRN_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=vptr)
  endif()
  # The address sanitizer reports uses of null, too. Checking alignment and null at every access costs a third of GCC's compile time;
  # the preset `fuzz` checks both.
  if(CAIRN_SANITIZE MATCHES undefined AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-fno-sanitize=null,alignment)
  endif()
  add_link_options(-fsanitize=${CAIRN_SANITIZE})
endif()
if(CAIRN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "CAIRN_FUZZ needs libFuzzer, which is Clang's: use preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Headers are included as <cairn/storage/store.hpp>, in the tree as when installed.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include/cairn SYMBOLIC)
target_include_directories(cairn_settings INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
