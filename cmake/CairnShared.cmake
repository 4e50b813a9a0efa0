# The shared libraries that users link: libcairn.so, and libcairn_training.so, which builds on it. Each is made of the static libraries of its
# folders, and exports namespace cairn and nothing else.
include(GNUInstallDirs)

# cairn_shared_library(<target> NAME <name of the file> EXPORT_NAME <name in namespace cairn::> PUBLIC <folder>... [INNER <folder>...])
# Symbols of PUBLIC folders are exported, those of INNER folders are not.
function(cairn_shared_library target)
  cmake_parse_arguments(ARG "" "NAME;EXPORT_NAME" "PUBLIC;INNER" ${ARGN})
  add_library(${target} SHARED)
  foreach(folder IN LISTS ARG_PUBLIC ARG_INNER)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:cairn_${folder}>)
  endforeach()
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${ARG_NAME} EXPORT_NAME ${ARG_EXPORT_NAME} LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  add_library(cairn::${ARG_EXPORT_NAME} ALIAS ${target})

  list(TRANSFORM ARG_PUBLIC REPLACE "(.+)" "$<TARGET_FILE:cairn_\\1>" OUTPUT_VARIABLE archives)
  list(TRANSFORM ARG_PUBLIC PREPEND cairn_ OUTPUT_VARIABLE targets)
  set(export_map ${PROJECT_BINARY_DIR}/lib${ARG_NAME}.map)
  set(script ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/export_map.py)
  add_custom_command(OUTPUT ${export_map}
    COMMAND ${Python3_EXECUTABLE} ${script} ${CMAKE_NM} ${export_map} ${archives}
    DEPENDS ${script} ${targets}
    COMMENT "Listing the symbols that lib${ARG_NAME}.so exports"
    VERBATIM)
  add_custom_target(${target}_map DEPENDS ${export_map})
  add_dependencies(${target} ${target}_map)
  target_link_options(${target} PRIVATE -Wl,--version-script=${export_map})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${export_map})
  if(NOT CAIRN_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
endfunction()

cairn_shared_library(cairn_shared NAME cairn EXPORT_NAME cairn
                     PUBLIC base planning tracing formats storage state runtime INNER messages protocol actors)
# The archives are named for what they depend on in turn: their own members are here already.
target_link_libraries(cairn_shared PRIVATE cairn_runtime INTERFACE $<BUILD_INTERFACE:cairn_torch>)
target_compile_features(cairn_shared INTERFACE cxx_std_${cairn_cxx_standard})
# The warnings of a parent project are not for Cairn's headers.
if(PROJECT_IS_TOP_LEVEL)
  set(as_system "")
else()
  set(as_system SYSTEM)
endif()
target_include_directories(cairn_shared ${as_system} INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# All that it uses of the folders below is exported by libcairn.so, beside which it is installed. Their archives must not be linked: there is
# one copy of their variables.
if(CAIRN_WITH_TRAINING)
  cairn_shared_library(cairn_training_shared NAME cairn_training EXPORT_NAME training PUBLIC training)
  target_link_libraries(cairn_training_shared PUBLIC cairn_shared)
  set_target_properties(cairn_training_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
endif()
