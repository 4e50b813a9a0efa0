# libcairn.so, what users link: the static libraries of all folders in one, exporting namespace cairn and nothing else.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(CairnPublicHeaders)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

set(public_folders base planning tracing state storage training runtime)
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
target_include_directories(cairn_shared INTERFACE $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/include>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

list(TRANSFORM public_folders REPLACE "(.+)" "$<TARGET_FILE:cairn_\\1>" OUTPUT_VARIABLE public_archives)
list(TRANSFORM public_folders PREPEND cairn_ OUTPUT_VARIABLE public_targets)
set(export_map ${CMAKE_BINARY_DIR}/libcairn.map)
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

# --- what `cmake --install` puts down ---------------------------------------------------------------------------------------

install(TARGETS cairn_shared EXPORT cairnTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(header IN LISTS CAIRN_PUBLIC_HEADERS)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cairn/${folder})
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)
install(EXPORT cairnTargets NAMESPACE cairn:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/cairnConfig.cmake.in ${CMAKE_BINARY_DIR}/cairnConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cairnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/cairnConfig.cmake ${CMAKE_BINARY_DIR}/cairnConfigVersion.cmake DESTINATION ${package_dir})

# The flags of LibTorch, for those who build without CMake.
set(torch_cflags ${TORCH_INCLUDE_DIRS})
list(REMOVE_DUPLICATES torch_cflags)
list(TRANSFORM torch_cflags PREPEND -I)
list(JOIN torch_cflags " " torch_cflags)
set(torch_libs -ltorch -ltorch_cpu -lc10)
get_filename_component(torch_libdir ${TORCH_LIBRARY} DIRECTORY)
if(NOT torch_libdir IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  list(PREPEND torch_libs -L${torch_libdir} -Wl,-rpath,${torch_libdir})
endif()
list(JOIN torch_libs " " torch_libs)
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
# A flag only if the compiler's default is lower: it would take back a higher standard of the user's.
set(pc_standard "")
if(CMAKE_CXX_STANDARD_DEFAULT LESS cairn_cxx_standard)
  set(pc_standard "-std=c++${cairn_cxx_standard} ")
endif()
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/cairn.pc.in ${CMAKE_BINARY_DIR}/cairn.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/cairn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/cairn)
