# `cmake --install` and find_package(mpfa): target mpfa::mpfa for C++20 and, through mpfa/mpfa.h, for C.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

target_compile_features(mpfa INTERFACE cxx_std_20)
install(TARGETS mpfa EXPORT mpfa-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT core)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/mpfa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT core)

set(MPFA_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/mpfa)
install(EXPORT mpfa-targets NAMESPACE mpfa:: FILE mpfaConfig.cmake DESTINATION ${MPFA_CONFIG_DIR} COMPONENT core)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mpfaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mpfaConfigVersion.cmake DESTINATION ${MPFA_CONFIG_DIR} COMPONENT core)
