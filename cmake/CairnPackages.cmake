# cpack makes Debian packages of what is built: the libraries, what programs are compiled with, and the commands. They are for the release of
# Debian on which they are built, with its LibTorch: preset `debian`.
if(NOT TORCH_INSTALL_PREFIX STREQUAL "/usr")
  return()  # a LibTorch that is no Debian package is none to depend on
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cairn)
set(CPACK_PACKAGE_VENDOR Cairn)
set(CPACK_PACKAGE_CONTACT "Cairn <cairn@localhost>" CACHE STRING "Maintainer of the packages: a name and an address")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL cairn_libraries cairn_development)
if(CAIRN_BUILD_COMMANDS OR CAIRN_BUILD_TESTS)
  list(APPEND CPACK_COMPONENTS_ALL cairn_tools)
endif()

set(library_package libcairn${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(same_version "${library_package} (= ${PROJECT_VERSION}-1)")
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" torch_minor ${Torch_VERSION})
math(EXPR torch_next "${CMAKE_MATCH_2} + 1")
set(torch_next ${CMAKE_MATCH_1}.${torch_next})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})

set(CPACK_DEBIAN_CAIRN_LIBRARIES_PACKAGE_NAME ${library_package})
set(CPACK_DEBIAN_CAIRN_LIBRARIES_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_CAIRN_LIBRARIES_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CAIRN_LIBRARIES_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_CAIRN_LIBRARIES_DESCRIPTION "${PROJECT_DESCRIPTION}\nShared libraries.")

set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_PACKAGE_NAME libcairn-dev)
set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_PACKAGE_DEPENDS "${same_version}, libtorch-dev (>= ${torch_minor}), libtorch-dev (<< ${torch_next}~)")
set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_PACKAGE_SUGGESTS "cmake, pkgconf, libgloo-dev, doctest-dev")
set(CPACK_DEBIAN_CAIRN_DEVELOPMENT_DESCRIPTION "${PROJECT_DESCRIPTION}\nHeaders, CMake and pkg-config packages, documents and examples.")

set(CPACK_DEBIAN_CAIRN_TOOLS_PACKAGE_NAME cairn-tools)
set(CPACK_DEBIAN_CAIRN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_CAIRN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CAIRN_TOOLS_PACKAGE_DEPENDS python3)
set(CPACK_DEBIAN_CAIRN_TOOLS_DESCRIPTION "${PROJECT_DESCRIPTION}\nThe commands cairn and cairn-launch.")

# Debian expects the licence of each package in a place of its own; only packages have these files.
foreach(component libraries development tools)
  string(TOUPPER CPACK_DEBIAN_cairn_${component}_PACKAGE_NAME name)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${${name}} RENAME copyright
          COMPONENT cairn_${component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
