# The install rules of the libraries, their documents and the examples. Those of the commands are in tools/.
include(CMakePackageConfigHelpers)
include(CairnPublicHeaders)

# The components are the packages of CairnPackages.cmake. `cmake --install` installs all of them.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME cairn_development)
set(to_libdir LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cairn_libraries NAMELINK_COMPONENT cairn_development)
install(TARGETS cairn_shared EXPORT cairnTargets ${to_libdir})
set(headers ${CAIRN_PUBLIC_HEADERS})
if(CAIRN_WITH_TRAINING)
  install(TARGETS cairn_training_shared EXPORT cairnTrainingTargets ${to_libdir})
  list(APPEND headers ${CAIRN_TRAINING_HEADERS})
endif()
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cairn/${folder})
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)
install(EXPORT cairnTargets NAMESPACE cairn:: DESTINATION ${package_dir})
if(CAIRN_WITH_TRAINING)
  install(EXPORT cairnTrainingTargets NAMESPACE cairn:: DESTINATION ${package_dir})
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/cairnConfig.cmake.in ${PROJECT_BINARY_DIR}/cairnConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cairnConfig.cmake ${PROJECT_BINARY_DIR}/cairnConfigVersion.cmake DESTINATION ${package_dir})

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
# A flag only if the compiler's default is lower: it would take back a higher standard of the user's.
set(pc_standard "")
if(CMAKE_CXX_STANDARD_DEFAULT LESS cairn_cxx_standard)
  set(pc_standard "-std=c++${cairn_cxx_standard} ")
endif()
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
set(packages cairn)
if(CAIRN_WITH_TRAINING)
  list(APPEND packages cairn-training)
endif()
foreach(package IN LISTS packages)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${package}.pc.in ${PROJECT_BINARY_DIR}/${package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

# Documents and examples keep the names by which headers and documents refer to them.
set(doc_dir ${CMAKE_INSTALL_DATADIR}/doc/cairn)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc_dir})
install(FILES ${PROJECT_SOURCE_DIR}/storage/FORMAT.md DESTINATION ${doc_dir}/storage)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${doc_dir} FILES_MATCHING PATTERN "*.md")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${doc_dir} USE_SOURCE_PERMISSIONS
        REGEX "/examples/(CMakeLists.txt|demo.sh)$" EXCLUDE)  # which build and run in Cairn's own tree
