# libcairn.so, what users link: the static libraries of all folders in one, exporting namespace cairn and nothing else.
include(GNUInstallDirs)

set(public_folders base planning tracing state storage training runtime)
if(NOT CAIRN_WITH_TRAINING)
  list(REMOVE_ITEM public_folders training)
endif()
set(inner_folders messages protocol actors)

add_library(cairn_shared SHARED)
foreach(folder IN LISTS public_folders inner_folders)
  target_sources(cairn_shared PRIVATE $<TARGET_OBJECTS:cairn_${folder}>)
endforeach()
set_target_properties(cairn_shared PROPERTIES
  OUTPUT_NAME cairn EXPORT_NAME cairn LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
add_library(cairn::cairn ALIAS cairn_shared)

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

list(TRANSFORM public_folders REPLACE "(.+)" "$<TARGET_FILE:cairn_\\1>" OUTPUT_VARIABLE public_archives)
list(TRANSFORM public_folders PREPEND cairn_ OUTPUT_VARIABLE public_targets)
set(export_map ${PROJECT_BINARY_DIR}/libcairn.map)
add_custom_command(OUTPUT ${export_map}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/export_map.py ${CMAKE_NM} ${export_map} ${public_archives}
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/export_map.py ${public_targets}
  COMMENT "Listing the symbols that libcairn.so exports"
  VERBATIM)
add_custom_target(cairn_export_map DEPENDS ${export_map})
add_dependencies(cairn_shared cairn_export_map)
target_link_options(cairn_shared PRIVATE -Wl,--version-script=${export_map})
set_property(TARGET cairn_shared APPEND PROPERTY LINK_DEPENDS ${export_map})
if(NOT CAIRN_SANITIZE)
  target_link_options(cairn_shared PRIVATE -Wl,--no-undefined)
endif()
